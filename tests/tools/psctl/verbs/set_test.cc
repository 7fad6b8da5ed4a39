#include "tools/psctl/verbs/set.h"

#include <signal.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/tools/psctl/client/fake_admin.h"
#include "tools/psctl/text/exit_code.h"

namespace lodestone::psctl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class SetTest : public TwoServersTest {
 protected:
  SetTest() {
    options_.address = zero_.address;
    options_.table = "rows";
    for (FakeAdmin* each : {&zero_, &one_}) {
      each->settings.set_name("rows");
      each->settings.mutable_optimizer()->set_learning_rate(0.5f);
      each->settings.set_revision(each == &zero_ ? 3 : 4);
    }
  }
  // Runs it; what it printed.
  std::string Output(int exit_code) {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    EXPECT_EQ(RunSet(options_), exit_code);
    errors_ = testing::internal::GetCapturedStderr();
    return testing::internal::GetCapturedStdout();
  }
  SetOptions options_;
  std::string errors_;
};

TEST_F(SetTest, AsksEveryServerForTheSame) {
  options_.assignments = {"optimizer.learning_rate=0.5", "guard={norm_max_factor: 7}"};
  options_.released = {"broadcast"};
  zero_.settings.add_held("optimizer.learning_rate");
  one_.settings.add_held("optimizer.learning_rate");
  const std::string text = Output(0);
  for (FakeAdmin* each : {&zero_, &one_}) {
    EXPECT_THAT(
        each->names(),
        ElementsAre("table: \"rows\"",
                    "table: \"rows\" fields: \"optimizer.learning_rate\" fields: \"guard\" settings { optimizer "
                    "{ learning_rate: 0.5 } guard { norm_max_factor: 7 } revision: 4 } released: \"broadcast\""));
  }
  EXPECT_THAT(text, HasSubstr("ps 0: changed\n"));
  EXPECT_THAT(text, HasSubstr("ps 1: changed\n"));
  EXPECT_THAT(text, HasSubstr("# held against what workers bring: optimizer.learning_rate\n"));
  EXPECT_THAT(errors_, IsEmpty());
}

TEST_F(SetTest, WithoutAFieldItPrintsTheSettingsOnce) {
  const std::string text = Output(0);
  EXPECT_THAT(text, HasSubstr("  learning_rate: 0.5\n"));
  EXPECT_THAT(text, Not(HasSubstr("revision")));
  EXPECT_THAT(text, Not(HasSubstr("ps 1"))) << "it has the same, but for what each ps counts by itself";
  one_.settings.mutable_optimizer()->set_learning_rate(0.25f);
  EXPECT_THAT(Output(0), HasSubstr("ps 1 has other settings"));
  options_.json = true;
  const auto json = nlohmann::json::parse(Output(0));
  EXPECT_EQ(json["servers"][1]["settings"]["optimizer"]["learning_rate"], 0.25);
}

TEST_F(SetTest, TellsWhichServerFailedAndThatItCanBeRunAgain) {
  one_.answer = grpc::Status(grpc::StatusCode::NOT_FOUND, "there is no table `rows`");
  options_.assignments = {"memory_max_bytes=64MiB"};
  Output(1);
  EXPECT_THAT(errors_, HasSubstr("ps 1: the ps at " + one_.address + ": there is no table `rows`"));
  EXPECT_THAT(errors_, HasSubstr("1 of 2 servers failed, the others have it so now"));
}

TEST_F(SetTest, NothingIsChangedWhileAPsIsOfAnOlderVersion) {
  one_.answer = grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "");
  options_.assignments = {"memory_max_bytes=64MiB"};
  Output(1);
  EXPECT_THAT(errors_, HasSubstr("ps 1 is of an older version"));
  EXPECT_THAT(zero_.names(), ElementsAre("table: \"rows\""));
}

// With the highest revision of both.
constexpr char kToSync[] =
    "table: \"rows\" fields: \"consistency\" settings { revision: 4 consistency { sync { batches: 2 } } } orders: 3";

TEST_F(SetTest, InAPauseItAsksUntilEveryServerHadIt) {
  zero_.status.add_tables()->set_name("rows");
  zero_.refusals = 1;
  options_.assignments = {"consistency={sync: {batches: 2}}"};
  const std::string text = Output(0);
  EXPECT_THAT(one_.names(), ElementsAre("table: \"rows\"", kToSync, kToSync, kToSync));
  EXPECT_THAT(text, HasSubstr("ps 0: changed\n"));
  EXPECT_THAT(text, HasSubstr("ps 1: changed\n")) << "by the first of the three";
  EXPECT_THAT(errors_, IsEmpty());
}

TEST_F(SetTest, APauseThatTakesLongSaysWhatItWaitsFor) {
  zero_.status.add_tables()->set_name("rows");
  zero_.refusals = 8;  // Each for 200 ms at least.
  options_.assignments = {"consistency={sync: {batches: 2}}"};
  EXPECT_THAT(Output(0), HasSubstr("ps 0: changed\n"));
  EXPECT_THAT(errors_, HasSubstr("tries again, training pauses: ps 0: "));
  EXPECT_THAT(errors_, HasSubstr("shard 3 is just given to another ps"));
}

TEST_F(SetTest, TrainingPausesWhereStepsBeginOrEnd) {
  zero_.status.add_tables()->set_name("rows");
  options_.assignments = {"consistency={sync: {batches: 2}}"};
  EXPECT_THAT(Output(0), HasSubstr("workers that train paused for it, for "));
  const auto at_rest = [](const std::vector<std::string>& names) {
    std::vector<std::string> kinds;
    for (const std::string& name : names) {
      const bool keeps = name == "pause " && !kinds.empty() && kinds.back() != "asked";
      if (!keeps) kinds.push_back(name == "table: \"rows\"" ? "asked" : name);
    }
    return kinds;
  };
  EXPECT_THAT(at_rest(zero_.names()), ElementsAre("asked", "pause ", kToSync, kToSync, "pause end"));
  EXPECT_THAT(one_.names(), ElementsAre("table: \"rows\"", kToSync, kToSync)) << "it does not serve the coordinator";
  for (FakeAdmin* each : {&zero_, &one_}) each->settings.mutable_consistency()->mutable_tokens()->set_batch(2);
  options_.assignments = {"consistency={async: {}}"};
  EXPECT_THAT(Output(0), HasSubstr("paused for it"));
  for (FakeAdmin* each : {&zero_, &one_}) each->settings.clear_consistency();
  options_.assignments = {"consistency={bounded: {}}"};
  EXPECT_THAT(Output(0), Not(HasSubstr("paused")));
}

TEST_F(SetTest, StepsThatATableCouldNotHaveOrThatAnotherOfItsModelLacksAreRefusedBeforeAnythingPauses) {
  for (const char* const name : {"rows", "more", "alone"}) zero_.status.add_tables()->set_name(name);
  for (FakeAdmin* each : {&zero_, &one_}) {
    for (const char* const name : {"more", "rows"}) each->settings.mutable_model()->add_tables()->set_name(name);
  }
  options_.assignments = {"consistency={sync: {batches: 2}}"};
  Output(1);
  EXPECT_THAT(errors_, HasSubstr("table `more` is of the same model as `rows`"));
  options_.table = "rows,more";  // Table `alone` is of no model.
  for (FakeAdmin* each : {&zero_, &one_}) each->settings.mutable_guard()->set_norm_max_factor(7);
  Output(1);
  EXPECT_THAT(errors_, HasSubstr("table `rows` has a guard"));
  options_.assignments.push_back("guard={norm_max_factor: 0}");
  one_.answer = grpc::Status(grpc::StatusCode::INTERNAL, "the disk is full");
  Output(1);
  EXPECT_THAT(errors_, HasSubstr("the disk is full"));
  EXPECT_THAT(zero_.names(), Not(testing::Contains(HasSubstr("pause"))));
  one_.answer = grpc::Status::OK;
  EXPECT_THAT(Output(0), HasSubstr("paused for it"));
}

TEST_F(SetTest, NothingIsSetIfTrainingDoesNotPause) {
  zero_.status.add_tables()->set_name("rows");
  zero_.rests = false;
  options_.timeout_ms = 1000;
  options_.assignments = {"consistency={sync: {batches: 2}}"};
  Output(4);
  EXPECT_THAT(errors_, HasSubstr("training has not paused within 1 s, and goes on as it was (--timeout): worker 3 ends "
                                 "its steps"));
  EXPECT_THAT(one_.names(), ElementsAre("table: \"rows\""));
  EXPECT_EQ(zero_.names().back(), "pause end");
}

TEST_F(SetTest, AnInterruptEndsThePauseBeforeThePsctlThatAskedForIt) {
  zero_.status.add_tables()->set_name("rows");
  options_.assignments = {"consistency={sync: {batches: 2}}"};
  const auto interrupt_when = [&](absl::string_view asked) {
    return std::thread([this, asked] {
      while (zero_.names().empty() || zero_.names().back() != asked) std::this_thread::yield();
      kill(getpid(), SIGTERM);
    });
  };
  zero_.rests = false;
  std::thread interrupts = interrupt_when("pause ");
  Output(kExitInterrupted);
  interrupts.join();
  EXPECT_THAT(errors_, HasSubstr("interrupted: training is to go on as it was"));
  EXPECT_EQ(zero_.names().back(), "pause end");
  EXPECT_THAT(one_.names(), ElementsAre("table: \"rows\""));

  zero_.rests = true;
  one_.refusals = 1'000'000;
  interrupts = interrupt_when(kToSync);
  Output(kExitInterrupted);
  interrupts.join();
  EXPECT_THAT(errors_, HasSubstr("interrupted, and some servers may have it: run this again"));
  EXPECT_EQ(zero_.names().back(), "pause end");
}

TEST_F(SetTest, SeveralTablesAreSetOneAfterAnother) {
  options_.table = "rows,more";
  options_.assignments = {"memory_max_bytes=64MiB"};
  EXPECT_THAT(Output(0), HasSubstr("\ntable more\n"));
  EXPECT_EQ(zero_.names().size(), 4u);
  options_.json = true;
  EXPECT_EQ(nlohmann::json::parse(Output(0))["tables"][1]["table"], "more");
  options_.json = false;
  options_.all_tables = true;
  Output(2);
  EXPECT_THAT(errors_, HasSubstr("--all-tables means `rows,more` too"));
  options_.table = "guard={norm_max_factor: 7}";  // The first that stands without a flag.
  options_.assignments.clear();
  Output(1);
  EXPECT_THAT(errors_, HasSubstr("there are no tables yet"));
  options_.all_tables = false;
  options_.table = "";
  Output(2);
  EXPECT_THAT(errors_, HasSubstr("which table?"));
}

TEST_F(SetTest, AFieldThatIsNoneIsAWrongCommandLineWithTheNearestName) {
  options_.assignments = {"optimizer.lerning_rate=0.5"};
  Output(2);
  EXPECT_THAT(errors_, HasSubstr("optimizer.lerning_rate: unknown field (did you mean `learning_rate`?)"));
  EXPECT_THAT(errors_, Not(HasSubstr("--set")));
  options_.assignments = {"optimizer.learning_rate"};
  Output(2);
  EXPECT_THAT(errors_, HasSubstr("expected PATH=VALUE"));
  EXPECT_THAT(zero_.names(), IsEmpty());
}

}  // namespace
}  // namespace lodestone::psctl
