// A real ps that dies and is started again with its folder: it gets what it lacks from its owners' logs.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "httplib.h"
#include "tests/cluster/replicas_fixture.h"

namespace lodestone {
namespace {

class CatchUpTest : public ReplicasFixture {
 protected:
  void SetUp() override {
    // Each with its own disk: or a checkpoint of ps 0 might bring ps 1 up.
    StartCluster(/*servers=*/2, {"coordinator.lease_ms=2000", "server.http_listen=127.0.0.1:0"}, /*own_disks=*/true);
    if (!HasFatalFailure()) AwaitAllInSync();
  }

  // Pushes ones, and waits until all are acknowledged.
  void PushOnes(int count) {
    Run([this, count] {
      const std::vector<float> ones(kElements, 1.0f);
      for (int i = 0; i < count; ++i) {
        const worker::DenseGradient dense{&tables_[0], ones.data(), false};
        const absl::Status sent = client_->Push(++pushed_, {&dense, 1}, {}, {}, [](const auto& result) {
          EXPECT_TRUE(result.status.ok()) << result.status;
        });
        ASSERT_TRUE(sent.ok()) << sent;
      }
      const absl::Status flushed = client_->Flush();
      EXPECT_TRUE(flushed.ok()) << flushed;
    });
  }
  // A counter of ps 0.
  uint64_t Counted(const std::string& name) {
    httplib::Client http(absl::StrCat("http://", StatusOf(0).server().http()));
    const httplib::Result answer = http.Get("/metrics");
    EXPECT_TRUE(answer) << "ps 0 does not answer";
    if (!answer) return 0;
    for (absl::string_view line : absl::StrSplit(answer->body, '\n')) {
      uint64_t value = 0;
      if (absl::ConsumePrefix(&line, name + " ") && absl::SimpleAtoi(line, &value)) return value;
    }
    ADD_FAILURE() << "there is no " << name;
    return 0;
  }
  uint64_t pushed_ = 0;
};

TEST_F(CatchUpTest, APsThatIsStartedAgainWithItsFolderGetsWhatItLacksFromTheLogAndNoState) {
  ASSERT_NO_FATAL_FAILURE(Connect({DenseOnes()}));
  PushOnes(50);
  for (int life = 0; life < 2; ++life) {
    const uint64_t states = Counted("lodestone_ps_replication_states_total");
    const uint64_t shards = Counted("lodestone_ps_replication_caught_up_shards_total");
    const uint64_t records = Counted("lodestone_ps_replication_caught_up_records_total");
    cluster_->Kill(1);
    PushOnes(100);
    ASSERT_TRUE(cluster_->Start(1).ok());
    ASSERT_TRUE(Await([this] { return cluster_->Listens(1) && AllInSync(); }));
    EXPECT_EQ(Counted("lodestone_ps_replication_states_total"), states);
    EXPECT_EQ(Counted("lodestone_ps_replication_caught_up_shards_total"), shards + kShards);
    EXPECT_GT(Counted("lodestone_ps_replication_caught_up_records_total"), records);
    PushOnes(20);
    ExpectReplicasEqual();
  }
  EXPECT_EQ(PullDense(), std::vector<float>(kElements, static_cast<float>(pushed_)));
  EXPECT_TRUE(cluster_->TakeDeaths().empty());
}

}  // namespace
}  // namespace lodestone
