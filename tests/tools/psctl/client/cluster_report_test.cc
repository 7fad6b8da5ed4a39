#include "tools/psctl/client/cluster_report.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/psctl/client/fake_admin.h"
#include "tools/psctl/text/exit_code.h"

namespace lodestone::psctl {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int kTimeoutMs = 60'000;  // The machine may be slow.

class ClusterReportTest : public TwoServersTest {
 protected:
  ClusterReportTest() {
    zero_.status.mutable_server()->set_pushes_per_second(10);
    one_.status.mutable_server()->set_pushes_per_second(11);
  }
  static ClusterReport Ask(const std::string& address) {
    const auto report = AskCluster(address, kTimeoutMs);
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? *report : ClusterReport();
  }
};

TEST_F(ClusterReportTest, AsksEveryServerWhicheverWasNamed) {
  for (const std::string& address : {zero_.address, one_.address}) {
    const ClusterReport report = Ask(address);
    EXPECT_EQ(report.coordinator, zero_.address);
    EXPECT_EQ(report.cluster.name(), "test");
    EXPECT_THAT(report.remark, IsEmpty());
    ASSERT_THAT(report.servers, SizeIs(2));
    for (uint32_t i = 0; i < 2; ++i) {
      EXPECT_EQ(report.servers[i].index, i);
      ASSERT_TRUE(report.servers[i].status.ok()) << report.servers[i].status.status();
      EXPECT_EQ(report.servers[i].status->server().pushes_per_second(), 10 + i);
    }
  }
}

TEST_F(ClusterReportTest, WhatServersSayNowReplacesWhatTheyToldTheCoordinator) {
  for (v1::MemberStatus& member : *zero_.cluster.mutable_servers()) {
    member.mutable_server()->set_pushes_per_second(1);
  }
  const ClusterReport report = Ask(zero_.address);
  for (const v1::MemberStatus& member : report.cluster.servers()) {
    EXPECT_EQ(member.server().pushes_per_second(), 10 + member.index());
  }
}

TEST_F(ClusterReportTest, DoesNotAskTheDeadNorThoseThatLeft) {
  for (v1::MemberStatus& member : *zero_.cluster.mutable_servers()) {
    if (member.index() == 0) continue;
    member.set_alive(false);
    member.mutable_server()->set_pushes_per_second(1);
  }
  ClusterReport report = Ask(zero_.address);
  EXPECT_TRUE(absl::IsFailedPrecondition(report.servers[1].status.status()));
  EXPECT_EQ(report.servers[1].status.status().message(), "it is dead");
  EXPECT_FALSE(report.servers[1].failed());
  for (v1::MemberStatus& member : *zero_.cluster.mutable_servers()) {
    if (member.index() == 1) member.set_left(true);
  }
  report = Ask(zero_.address);
  EXPECT_EQ(report.servers[1].status.status().message(), "it has left");
  testing::internal::CaptureStderr();
  EXPECT_EQ(ComplainAboutMissing("tables", report), kExitDone);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), IsEmpty());
}

TEST_F(ClusterReportTest, NamesAServerThatShouldAnswerAndDoesNot) {
  one_.status_answer = grpc::Status(grpc::StatusCode::INTERNAL, "no words");
  const ClusterReport report = Ask(zero_.address);
  EXPECT_TRUE(report.servers[0].status.ok());
  EXPECT_TRUE(report.servers[1].failed());
  testing::internal::CaptureStderr();
  EXPECT_EQ(ComplainAboutMissing("tables", report), kExitFailed);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "psctl tables: ps 1: the ps at " + one_.address + ": no words\n");
}

TEST_F(ClusterReportTest, WithoutACoordinatorThereIsTheOneThatWasAsked) {
  one_.coordinator = Nowhere();
  const ClusterReport report = Ask(one_.address);
  EXPECT_THAT(report.coordinator, IsEmpty());
  ASSERT_THAT(report.servers, SizeIs(1));
  EXPECT_EQ(report.servers[0].index, 1);
  EXPECT_TRUE(report.servers[0].status.ok());
  EXPECT_THAT(report.remark,
              HasSubstr("only the ps at " + one_.address + " could be asked: no ps answers at " + one_.coordinator));
  testing::internal::CaptureStderr();
  EXPECT_EQ(ComplainAboutMissing("tables", report), kExitFailed);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("psctl tables: only the ps"));
  one_.coordinator.clear();
  EXPECT_THAT(Ask(one_.address).remark, HasSubstr("knows no coordinator yet"));
}

TEST_F(ClusterReportTest, IsAnErrorWhereNothingListens) {
  EXPECT_TRUE(IsUnreachable(AskCluster(Nowhere(), kTimeoutMs).status()));
}

TEST_F(ClusterReportTest, AsJsonHasTheClusterOnce) {
  one_.status_answer = grpc::Status(grpc::StatusCode::INTERNAL, "no words");
  const nlohmann::ordered_json json = ToJson(Ask(zero_.address));
  EXPECT_EQ(json["coordinator"], zero_.address);
  EXPECT_EQ(json["cluster"]["name"], "test");
  EXPECT_EQ(json["servers"][0]["index"], 0);
  EXPECT_EQ(json["servers"][0]["status"]["server"]["pushes_per_second"], 10);
  EXPECT_FALSE(json["servers"][0]["status"].contains("cluster"));
  EXPECT_EQ(json["servers"][1]["error"], "the ps at " + one_.address + ": no words");
}

}  // namespace
}  // namespace lodestone::psctl
