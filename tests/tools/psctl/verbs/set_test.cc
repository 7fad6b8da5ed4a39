#include "tools/psctl/verbs/set.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/tools/psctl/client/fake_admin.h"

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
                    "{ learning_rate: 0.5 } guard { norm_max_factor: 7 } } released: \"broadcast\""));
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
