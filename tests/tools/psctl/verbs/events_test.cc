#include "tools/psctl/verbs/events.h"

#include <stdlib.h>
#include <sys/wait.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/tools/psctl/client/fake_admin.h"
#include "tests/tools/psctl/verbs/psctl_call.h"
#include "tools/psctl/text/exit_code.h"

namespace lodestone::psctl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kTimeoutMs = 60'000;

class EventsTest : public TwoServersTest {
 protected:
  EventsTest() {
    zero_.SetEvents(55, {"joined", "died"});
    one_.SetEvents(66, {"checkpointed"});
  }
  static std::vector<std::string> Read(EventReader* reader) {
    const auto events = reader->Read(kTimeoutMs);
    EXPECT_TRUE(events.ok()) << events.status();
    std::vector<std::string> kinds;
    if (!events.ok()) return kinds;
    for (const v1::Event& event : *events) kinds.push_back(event.kind());
    return kinds;
  }
  // The program, for a shell: its events, as ps 1 tells them.
  std::string Command(const std::string& flags) const {
    return absl::StrCat(getenv("TEST_SRCDIR"), "/", getenv("TEST_WORKSPACE"), "/tools/psctl/psctl events ", flags,
                        " --timeout 60s --address ", one_.address);
  }
};

TEST(EventLine, HasFixedColumnsAndObeysNobody) {
  v1::Event event;
  event.set_time_ms(1'700'000'000'123);
  event.set_kind("died");
  event.set_who("ps 1");
  event.set_text("last heard of 5.0 s ago\x1b[2J");
  EXPECT_EQ(EventLine(event), "2023-11-14T22:13:20.123Z  died          ps 1       last heard of 5.0 s ago?[2J");
  EXPECT_THAT(EventLine(event, Painter(true)), HasSubstr("\x1b[31mdied\x1b[0m          ps 1"));
}

TEST_F(EventsTest, ReadsTheCoordinatorsWhicheverPsWasNamed) {
  EventReader reader(one_.address);
  EXPECT_THAT(Read(&reader), ElementsAre("joined", "died"));
  EXPECT_THAT(Read(&reader), IsEmpty()) << "each is read once";
  EXPECT_THAT(reader.remark(), IsEmpty());
  zero_.SetEvents(55, {"joined", "died", "moved", "joined"});
  EXPECT_THAT(Read(&reader), ElementsAre("moved", "joined"));
  EXPECT_FALSE(reader.restarted());
}

TEST_F(EventsTest, AnotherLifeOfTheCoordinatorsLogIsReadFromItsStart) {
  EventReader reader(zero_.address);
  Read(&reader);
  zero_.SetEvents(56, {"elected"});
  EXPECT_THAT(Read(&reader), ElementsAre("elected"));
  EXPECT_TRUE(reader.restarted());
  EXPECT_THAT(Read(&reader), IsEmpty());
  EXPECT_FALSE(reader.restarted());
}

TEST_F(EventsTest, AnotherCoordinatorIsFoundThoughTheFormerStillAnswers) {
  EventReader reader(one_.address);
  EXPECT_THAT(Read(&reader), ElementsAre("joined", "died"));
  one_.cluster = zero_.cluster;
  zero_.cluster.Clear();
  zero_.SetEvents(57, {"checkpointed"});  // Of ps 0 alone, from now on.
  one_.SetEvents(67, {"elected", "joined"});
  EXPECT_THAT(Read(&reader), ElementsAre("elected", "joined"));
  EXPECT_TRUE(reader.restarted());
}

TEST_F(EventsTest, WithoutACoordinatorThereAreThePsOwnAndThatIsSaid) {
  one_.coordinator = Nowhere();
  EventReader reader(one_.address);
  EXPECT_THAT(Read(&reader), ElementsAre("checkpointed"));
  EXPECT_THAT(reader.remark(), HasSubstr("the coordinator does not answer, these are the events of the ps at " +
                                         one_.address + " alone: no ps answers at " + one_.coordinator));
  one_.coordinator = zero_.address;
  EXPECT_THAT(Read(&reader), ElementsAre("joined", "died")) << "once it is back";
  EXPECT_THAT(reader.remark(), IsEmpty());
}

TEST_F(EventsTest, IsAnErrorWhereNothingListens) {
  EventReader reader(Nowhere());
  EXPECT_TRUE(IsUnreachable(reader.Read(kTimeoutMs).status()));
}

TEST_F(EventsTest, TheVerbPrintsLines) {
  const PsctlCall call({"events", "--address", one_.address, "--timeout", "60s"});
  EXPECT_EQ(call.exit_code, 0) << call.errors;
  EXPECT_EQ(call.output,
            "2023-11-14T22:13:20.001Z  joined        ps 1       text 1\n"
            "2023-11-14T22:13:20.002Z  died          ps 1       text 2\n");
  EXPECT_EQ(PsctlCall({"events", "--address", one_.address, "--last", "1", "--timeout", "60s"}).output,
            "2023-11-14T22:13:20.002Z  died          ps 1       text 2\n");
}

TEST_F(EventsTest, TheVerbPrintsJson) {
  const PsctlCall call({"events", "--address", one_.address, "--json", "--timeout", "60s"});
  EXPECT_EQ(call.exit_code, 0) << call.errors;
  const nlohmann::json json = nlohmann::json::parse(call.output);
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json[1]["id"], 2);
  EXPECT_EQ(json[1]["kind"], "died");
  EXPECT_EQ(json[1]["who"], "ps 1");
  EXPECT_EQ(json[1]["time"], "2023-11-14T22:13:20.002Z");
  EXPECT_EQ(json[1]["time_ms"], 1'700'000'000'002);
}

TEST_F(EventsTest, FollowingEndsWhenNobodyReadsAnyMoreThoughNothingHappens) {
  EXPECT_EQ(system((Command("--follow") + " | head -n 1 > /dev/null").c_str()), 0);
}

TEST_F(EventsTest, WhatCannotBePrintedIsAFailure) {
  const std::string errors = testing::TempDir() + "/errors";
  const int status = system(absl::StrCat(Command(""), " > /dev/full 2> ", errors).c_str());
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
  std::ifstream file(errors);
  std::string said;
  std::getline(file, said);
  EXPECT_EQ(said, "psctl: what it prints could not be written to standard output");
}

TEST_F(EventsTest, TheVerbSaysWhatIsMissing) {
  one_.coordinator = Nowhere();
  const PsctlCall call({"events", "--address", one_.address, "--timeout", "60s"});
  EXPECT_EQ(call.exit_code, 1);
  EXPECT_THAT(call.output, HasSubstr("checkpointed"));
  EXPECT_THAT(call.errors, HasSubstr("psctl events: the coordinator does not answer"));
}

}  // namespace
}  // namespace lodestone::psctl
