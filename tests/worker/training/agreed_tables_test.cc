#include "worker/training/agreed_tables.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/client/fake_client.h"

namespace lodestone::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class AgreedTablesTest : public ::testing::Test {
 protected:
  AgreedTablesTest() {
    for (const char* const name : {"one", "other"}) {
      v1::TableSpec& spec = specs_.emplace_back();
      spec.set_name(name);
      spec.mutable_embedding()->set_dim(2);
      spec.mutable_optimizer()->mutable_sgd();
    }
    EXPECT_TRUE(client_.EnsureTables(specs_).ok());
    sync_.mutable_sync()->set_batches(2);
    wait_.time = &time_;
    wait_.stops = [] { return false; };
    wait_.on_wait = [this](const std::string& what) { waits_.push_back(what); };
  }

  FakeClient client_;
  ManualTime time_;
  std::vector<v1::TableSpec> specs_;
  v1::Consistency sync_;
  AgreementWait wait_;
  std::vector<std::string> waits_;
};

TEST_F(AgreedTablesTest, HaveTheConsistencyThatAnOperatorHolds) {
  for (const char* const name : {"one", "other"}) client_.ChangeConsistency(name, sync_);
  const auto tables = EnsureAgreedTables(&client_, specs_, wait_);
  ASSERT_TRUE(tables.ok()) << tables.status();
  ASSERT_EQ((*tables)->size(), 2u);
  for (const v1::TableSpec& spec : SpecsOf(**tables)) EXPECT_EQ(spec.consistency().sync().batches(), 2u);
  EXPECT_TRUE(waits_.empty());
}

TEST_F(AgreedTablesTest, AreWaitedForWhileTheyDiffer) {
  client_.ChangeConsistency("one", sync_);
  wait_.on_wait = [this](const std::string& what) {
    waits_.push_back(what);
    client_.ChangeConsistency("other", sync_);
  };
  const auto tables = EnsureAgreedTables(&client_, specs_, wait_);
  ASSERT_TRUE(tables.ok()) << tables.status();
  EXPECT_TRUE((*tables)->back().spec.consistency().has_sync());
  EXPECT_THAT(waits_, ElementsAre(HasSubstr("tables `one` and `other` have different ones"), ""));
}

TEST_F(AgreedTablesTest, AreWaitedForWhileServersDisagree) {
  client_.SetOtherServer(specs_);
  for (const char* const name : {"one", "other"}) client_.ChangeConsistency(name, sync_);
  wait_.on_wait = [this](const std::string& what) {
    waits_.push_back(what);
    client_.SetOtherServer({});
  };
  const auto tables = EnsureAgreedTables(&client_, specs_, wait_);
  ASSERT_TRUE(tables.ok()) << tables.status();
  EXPECT_TRUE((*tables)->front().spec.consistency().has_sync());
  EXPECT_THAT(waits_, ElementsAre(HasSubstr("servers have different ones of table `one`"), ""));
}

TEST_F(AgreedTablesTest, WhatNoOperatorHoldsIsForTheServersToJudge) {
  std::vector<v1::TableSpec> other = specs_;
  for (v1::TableSpec& spec : other) *spec.mutable_consistency() = sync_;
  client_.SetOtherServer(other);
  EXPECT_TRUE(EnsureAgreedTables(&client_, specs_, wait_).ok());
  client_.FailTables(absl::FailedPreconditionError("in the middle of a step"));
  EXPECT_THAT(std::string(EnsureAgreedTables(&client_, specs_, wait_).status().message()),
              HasSubstr("in the middle of a step"));
  EXPECT_TRUE(waits_.empty());
}

TEST_F(AgreedTablesTest, WhatAnOperatorChangesBetweenTheQuestionAndTheCallIsFollowed) {
  client_.FailTables(absl::FailedPreconditionError("another consistency than an operator holds"), [this] {
    for (const char* const name : {"one", "other"}) client_.ChangeConsistency(name, sync_);
  });
  const auto tables = EnsureAgreedTables(&client_, specs_, wait_);
  ASSERT_TRUE(tables.ok()) << tables.status();
  EXPECT_TRUE((*tables)->front().spec.consistency().has_sync());
}

TEST_F(AgreedTablesTest, AreNotWaitedForForEverNorByAWorkerThatIsAskedToStop) {
  client_.ChangeConsistency("one", sync_);
  wait_.timeout_ms = 60'000;
  wait_.stops = [this] {
    time_.AdvanceMs(30'000);
    return false;
  };
  const absl::Status differs = EnsureAgreedTables(&client_, specs_, wait_).status();
  EXPECT_EQ(differs.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(differs.message()), HasSubstr("run it again"));
  EXPECT_THAT(waits_, ElementsAre(HasSubstr("one order of steps"), ""));
  wait_.stops = [] { return true; };
  const auto stopped = EnsureAgreedTables(&client_, specs_, wait_);
  ASSERT_TRUE(stopped.ok());
  EXPECT_FALSE(stopped->has_value());
}

}  // namespace
}  // namespace lodestone::worker
