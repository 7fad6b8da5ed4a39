#include "server/readiness/readiness.h"

#include <map>
#include <string>

#include "common/base/time_source.h"
#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

constexpr char kParameterServer[] = "lodestone.v1.ParameterServer";
constexpr char kCoordinator[] = "lodestone.v1.Coordinator";

// What a health service was told, by name.
class Health : public grpc::HealthCheckServiceInterface {
 public:
  void SetServingStatus(const std::string& name, bool serving) override { told[name] = serving; }
  void SetServingStatus(bool serving) override {
    for (auto& [name, was] : told) was = serving;
  }
  void Shutdown() override { shut_down = true; }

  std::map<std::string, bool> told;
  bool shut_down = false;
};

class ReadinessTest : public ::testing::Test {
 protected:
  ReadinessTest() : readiness_("ps 1", &time_) { readiness_.Tell(&health_); }

  ManualTime time_;
  Health health_;
  Readiness readiness_;
};

TEST_F(ReadinessTest, WithoutCopiesItIsReadyAsSoonAsItServes) {
  EXPECT_FALSE(readiness_.Check().ok());
  EXPECT_FALSE(health_.told[""]);
  readiness_.Begin(/*wants_copies=*/false);
  EXPECT_TRUE(readiness_.Check().ok());
  EXPECT_TRUE(health_.told[""]);
  EXPECT_TRUE(health_.told[kParameterServer]);
}

TEST_F(ReadinessTest, WithCopiesItServesBeforeItIsReady) {
  readiness_.Begin(/*wants_copies=*/true);
  EXPECT_TRUE(health_.told[kParameterServer]);
  EXPECT_FALSE(health_.told[""]);
  readiness_.NoteToSync(3);
  time_.AdvanceMs(2500);
  v1::StatusResponse status;
  readiness_.FillStatus(&status);
  ASSERT_EQ(status.waits_size(), 1);
  EXPECT_EQ(status.waits(0).who(), "ps 1");
  EXPECT_EQ(status.waits(0).what().substr(0, 2), "3 ");
  EXPECT_DOUBLE_EQ(status.waits(0).seconds(), 2.5);
  EXPECT_FALSE(readiness_.Check().ok());

  readiness_.NoteToSync(0);
  EXPECT_TRUE(readiness_.Check().ok());
  EXPECT_TRUE(health_.told[""]);
  readiness_.NoteToSync(2);
  EXPECT_TRUE(readiness_.Check().ok()) << "once is enough: a copy that is lost later takes no ps from its callers";
}

TEST_F(ReadinessTest, AnAnswerFromBeforeItServedSaysNothing) {
  readiness_.NoteToSync(0);
  readiness_.Begin(/*wants_copies=*/true);
  EXPECT_FALSE(readiness_.Check().ok());
}

TEST_F(ReadinessTest, APsThatCannotMakeCallsDurableIsNotReadyMeanwhile) {
  readiness_.Begin(/*wants_copies=*/false);
  readiness_.SetWell(false);
  EXPECT_FALSE(readiness_.Check().ok());
  EXPECT_FALSE(health_.told[kParameterServer]);
  readiness_.SetWell(true);
  EXPECT_TRUE(readiness_.Check().ok());
}

// Regression: beginning made it serve although its disk had failed before.
TEST_F(ReadinessTest, APsWhoseDiskFailsBeforeItBeginsServesOnceItIsWell) {
  readiness_.SetWell(false);
  readiness_.Begin(/*wants_copies=*/false);
  EXPECT_FALSE(readiness_.Check().ok());
  EXPECT_FALSE(health_.told[kParameterServer]);
  readiness_.SetWell(true);
  EXPECT_TRUE(readiness_.Check().ok());
}

TEST_F(ReadinessTest, APsThatIsWellBeforeItBeginsDoesNotServeYet) {
  readiness_.SetWell(true);
  EXPECT_FALSE(readiness_.Check().ok());
  EXPECT_FALSE(health_.told[kParameterServer]);
}

TEST_F(ReadinessTest, TheCoordinatorHasANameOfItsOwn) {
  readiness_.SetCoordinator(true);
  EXPECT_TRUE(health_.told[kCoordinator]);
  EXPECT_FALSE(health_.told[kParameterServer]);
}

TEST_F(ReadinessTest, AfterStopNothingIsReady) {
  readiness_.Begin(/*wants_copies=*/false);
  readiness_.Stop();
  EXPECT_TRUE(health_.shut_down);
  EXPECT_FALSE(readiness_.Check().ok());
}

}  // namespace
}  // namespace lodestone::server
