#include "tools/psctl/verbs/replay.h"

#include <future>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/server/checkpoint/fake_ps.h"
#include "tests/server/replication/replica_fixture.h"

namespace lodestone::psctl {
namespace {

constexpr uint64_t kNewest = std::numeric_limits<uint64_t>::max();

// Two ps with one folder. The first one owns all shards, is deposed at version 3, and applies and logs what nobody
// confirms, which its successor's updates have the versions of.
class ReplayTest : public server::ReplicaFixture {
 protected:
  // Version and checksum of each shard.
  using Content = std::vector<std::string>;

  std::string DataDir(uint32_t /*index*/) const override { return root_; }

  // The second ps owns all; the first one has not heard of it.
  void PromoteSecond() {
    b().replication->SetMap(coordinator_.Promote(1, 0));
    ASSERT_TRUE(coordinator_.Await([this] { return b().store->shards().owned().size() == kShards; }));
  }
  void PushInVain(Sequence first, Sequence last) {
    for (Sequence s = first; s <= last; ++s) lost_.push_back(PushTo(&a(), s, 99));
    for (ShardId shard = 0; shard < kShards; ++shard) ASSERT_NO_FATAL_FAILURE(AwaitVersion(&a(), shard, last));
  }
  void PushToSecond(Sequence sequence) {
    const Pushed pushed = PushTo(&b(), sequence, static_cast<float>(sequence)).get();
    ASSERT_TRUE(pushed.ok()) << pushed.status();
  }
  static void Checkpoint(server::Node* node) {
    const auto written = node->storage->Checkpoint("");
    ASSERT_TRUE(written.ok()) << written.status();
  }
  static Content ContentOf(server::Node* node) {
    Content content;
    for (ShardId shard = 0; shard < kShards; ++shard) {
      content.push_back(absl::StrFormat("%d %016x", node->store->shards().VersionOf(shard), node->checksum(shard)));
    }
    return content;
  }
  // Ends a ps, which writes all of its log but no checkpoint. Both are gone before their folder is read.
  void End() {
    for (const auto& node : nodes_) node->replication->Shutdown();
    nodes_.clear();
  }
  // What the verb makes of the log of a ps and the checkpoints of both.
  Content Replayed(uint32_t index, uint64_t until) const {
    ReplayOptions options;
    options.log_dir = absl::StrCat(root_, "/ps-", index, "/log");
    options.from = root_ + "/checkpoints";
    options.until = until;
    options.json = true;
    testing::internal::CaptureStdout();
    const int exit_code = RunReplay(options);
    const std::string output = testing::internal::GetCapturedStdout();
    EXPECT_EQ(exit_code, 0);
    Content content;
    if (exit_code != 0) return content;
    const auto json = nlohmann::json::parse(output);
    for (const auto& shard : json["shards"]) {
      content.push_back(
          absl::StrFormat("%d %s", shard["version"].get<uint64_t>(), shard["checksum"].get<std::string>()));
    }
    return content;
  }

  const std::string root_ = server::FreshFolder();
  std::vector<std::future<Pushed>> lost_;
};

TEST_F(ReplayTest, OfADeposedOwnersLogLeavesOutTheTailThatItAppliedInVain) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  ASSERT_NO_FATAL_FAILURE(PromoteSecond());
  ASSERT_NO_FATAL_FAILURE(PushInVain(4, 7));
  a().replication->SetMap(coordinator_.map());  // It follows, and is given the state at version 3.
  ASSERT_TRUE(coordinator_.Await([this] { return coordinator_.AllInSync(); }));
  Checkpoint(&a());
  PushToSecond(4);
  const Content at_four = ContentOf(&b());
  PushToSecond(5);
  const Content at_five = ContentOf(&b());
  ASSERT_NO_FATAL_FAILURE(ExpectSame(&b(), &a()));
  End();
  EXPECT_EQ(Replayed(0, 4), at_four);
  // Its log has versions 6 and 7 too, which were no cluster's.
  for (const uint64_t until : {uint64_t{5}, uint64_t{6}, uint64_t{7}, kNewest}) {
    EXPECT_EQ(Replayed(0, until), at_five) << "until " << until;
  }
}

TEST_F(ReplayTest, FromACheckpointOfBeforeItWasDeposedLeavesOutThatTailToo) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  Checkpoint(&a());
  const Content at_three = ContentOf(&a());
  ASSERT_NO_FATAL_FAILURE(PromoteSecond());
  ASSERT_NO_FATAL_FAILURE(PushInVain(4, 7));
  a().replication->SetMap(coordinator_.map());
  ASSERT_TRUE(coordinator_.Await([this] { return coordinator_.AllInSync(); }));
  PushToSecond(4);
  const Content at_four = ContentOf(&b());
  PushToSecond(5);
  const Content at_five = ContentOf(&b());
  ASSERT_NO_FATAL_FAILURE(ExpectSame(&b(), &a()));
  End();
  EXPECT_EQ(Replayed(0, 3), at_three);
  EXPECT_EQ(Replayed(0, 4), at_four);
  for (const uint64_t until : {uint64_t{5}, uint64_t{6}, uint64_t{7}, kNewest}) {
    EXPECT_EQ(Replayed(0, until), at_five) << "until " << until;
  }
}

TEST_F(ReplayTest, OfASuccessorsLogDoesNotBeginWithWhatItsPredecessorAppliedInVain) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  Checkpoint(&b());
  ASSERT_NO_FATAL_FAILURE(PromoteSecond());
  ASSERT_NO_FATAL_FAILURE(PushInVain(4, 4));
  Checkpoint(&a());  // At version 4, into the folder of both.
  PushToSecond(4);
  const Content at_four = ContentOf(&b());
  PushToSecond(5);
  const Content at_five = ContentOf(&b());
  End();
  EXPECT_EQ(Replayed(1, 4), at_four);
  EXPECT_EQ(Replayed(1, 5), at_five);
  EXPECT_EQ(Replayed(1, kNewest), at_five);
}

}  // namespace
}  // namespace lodestone::psctl
