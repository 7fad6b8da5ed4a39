// A rolling update has two versions in one cluster: what the former one knows must mean the same now.
#include "tests/proto/protocol.h"

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Protocol, ProcessesOfTheFormerVersionUnderstandThisOne) {
  const std::string path =
      absl::StrCat(std::getenv("TEST_SRCDIR"), "/", std::getenv("TEST_WORKSPACE"), "/tests/proto/former_protocol.txt");
  std::ifstream file(path);
  std::vector<std::string> former;
  for (std::string line; std::getline(file, line);) former.push_back(line);
  ASSERT_GT(former.size(), 300u) << path;
  EXPECT_THAT(BrokenBy(former, ProtocolLines()), IsEmpty())
      << "a number that was used keeps its meaning: add a field under a new number, and reserve the old one";
}

TEST(Protocol, HasItsFieldsValuesAndMethods) {
  EXPECT_THAT(ProtocolLines(), Contains("field lodestone.v1.Part.shard = 1: uint32"));
  EXPECT_THAT(ProtocolLines(), Contains("value lodestone.v1.Role.ROLE_SERVER = 1"));
  EXPECT_THAT(
      ProtocolLines(),
      Contains("method lodestone.v1.ParameterServer.Push: lodestone.v1.PushRequest -> lodestone.v1.PushResponse"));
}

TEST(Protocol, OnlyWhatIsReservedMayGo) {
  const std::vector<std::string> former = {"field a.B.kept = 1: uint32", "field a.B.changed = 2: uint32",
                                           "field a.B.gone = 3: a.C", "field a.B.reserved = 4: bytes",
                                           "method a.S.Call: a.B -> a.B"};
  const std::vector<std::string> current = {"field a.B.added = 5: uint32", "field a.B.changed = 2: uint64",
                                            "field a.B.kept = 1: uint32", "reserved a.B 4"};
  EXPECT_THAT(BrokenBy(former, current),
              ElementsAre("field a.B.changed = 2: uint32", "field a.B.gone = 3: a.C", "method a.S.Call: a.B -> a.B"));
}

}  // namespace
}  // namespace lodestone
