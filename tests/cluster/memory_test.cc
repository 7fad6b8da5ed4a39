// The memory of a whole ps, as its operating system counts it, at its limit.
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/cluster/replicas_fixture.h"

namespace lodestone {
namespace {

constexpr uint64_t kLimitBytes = 256 << 20;
constexpr uint32_t kLimitedDim = 16;
constexpr size_t kKeysPerPush = 20'000;
constexpr int kPushesMax = 300;  // Twice as much as fits.

// Of a process, what is no file that it maps.
uint64_t AnonymousBytesOf(pid_t pid) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string word; status >> word;) {
    uint64_t kilobytes = 0;
    if (word == "RssAnon:" && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

class MemoryTest : public ReplicasFixture {
 protected:
  uint64_t TurnedAway() { return StatusOf(0).tables(0).turned_away(); }
  void PushNewKeys(Clock clock) {
    Run([&] {
      std::vector<Key> keys(kKeysPerPush);
      for (size_t i = 0; i < keys.size(); ++i) keys[i] = clock * kKeysPerPush + i;
      const std::vector<float> ones(keys.size() * kLimitedDim, 1.0f);
      const worker::RowGradients rows{&tables_[0], keys, ones.data()};
      const absl::Status sent = client_->Push(
          clock, {}, {&rows, 1}, {}, [](const auto& result) { EXPECT_TRUE(result.status.ok()) << result.status; });
      EXPECT_TRUE(sent.ok()) << sent;
      const absl::Status flushed = client_->Flush();
      EXPECT_TRUE(flushed.ok()) << flushed;
    });
  }
};

// Regression: the limit was the tables' alone, and the process took half as much again.
TEST_F(MemoryTest, APsAtItsLimitTakesNoMoreThanATenthMore) {
  ASSERT_NO_FATAL_FAILURE(
      StartCluster(1, {absl::StrCat("server.memory_max_bytes=", kLimitBytes)}, /*own_disks=*/false, /*replicas=*/1));
  v1::TableSpec spec = RowOnes();
  spec.mutable_embedding()->set_dim(kLimitedDim);
  spec.mutable_embedding()->mutable_admission()->set_when_full(v1::Admission::TURN_AWAY);
  ASSERT_NO_FATAL_FAILURE(Connect({spec}));
  Clock clock = 0;
  while (TurnedAway() == 0 && clock < kPushesMax) ASSERT_NO_FATAL_FAILURE(PushNewKeys(++clock));
  EXPECT_GT(TurnedAway(), 0u);
  for (int i = 0; i < 20; ++i) ASSERT_NO_FATAL_FAILURE(PushNewKeys(++clock));
  const uint64_t bytes = AnonymousBytesOf(cluster_->PidOf(0));
  EXPECT_LE(bytes, kLimitBytes / 10 * 11);
  EXPECT_GT(bytes, kLimitBytes / 10 * 8) << "it is not far below either";
  client_.reset();
}

}  // namespace
}  // namespace lodestone
