#include "server/durability/shard_history.h"

#include <vector>

#include "gtest/gtest.h"
#include "server/shard/shard.h"

namespace lodestone::server {
namespace {

// A record of a push, or, with `previous_term`, the first of a new owner.
v1::LogRecord RecordAt(Version version, uint64_t term, uint64_t previous_term = 0) {
  v1::LogRecord record;
  record.set_shard(0);
  record.set_version(version);
  record.set_term(term);
  if (previous_term > 0) record.set_previous_term(previous_term);
  return record;
}

// Replays what is taken, as a recovery does.
bool ReplayOn(Shard* shard, ShardHistory* history, const v1::LogRecord& record) {
  if (!history->Takes(record, *shard)) return false;
  Evictions evictions(std::vector<EvictedKeys>{});
  const absl::Status replayed = shard->ReplayPush(record.version(), /*worker=*/1, record.version(), {}, 0, &evictions);
  EXPECT_TRUE(replayed.ok()) << replayed;
  if (record.term() > shard->term()) shard->BeginTerm(record.term());
  return true;
}

// An owner applied 3 and 4 in vain, was replaced at 2, and followed from there: its log has both ways. A recovery
// without an older checkpoint came to the same fork again and again, for ever.
TEST(ShardHistory, WhatWasAppliedInVainIsLeftOutWhenTheLogIsReplayedAgain) {
  const std::vector<v1::LogRecord> log = {RecordAt(1, 1, 0), RecordAt(2, 1), RecordAt(3, 1), RecordAt(4, 1),
                                          RecordAt(3, 2, 1), RecordAt(4, 2), RecordAt(5, 2)};
  ShardHistory history;
  history.StartFrom(1);
  Shard first(0);
  for (const v1::LogRecord& record : log) ReplayOn(&first, &history, record);
  ASSERT_TRUE(history.forked());
  history.BeginAgain();

  Shard second(0);
  std::vector<bool> taken;
  for (const v1::LogRecord& record : log) taken.push_back(ReplayOn(&second, &history, record));
  EXPECT_FALSE(history.forked()) << "it would begin again";
  EXPECT_EQ(taken, (std::vector<bool>{true, true, false, false, true, true, true}));
  EXPECT_EQ(second.version(), 5u);
  EXPECT_EQ(second.term(), 2u);
}

// Regression, of simulation's seed 4461: an owner died before its log had the update that its follower had got already.
// It went on without it, in a later term; what the follower then wrote, into the folder of all ps, ranked above the
// owner's own states, and the owner's next start refused its log.
TEST(ShardHistory, AStateOfATermThatTheNextOwnerLeftOutIsOfAHistoryThatHasEnded) {
  Shard shard(0);
  ShardHistory history;
  history.StartFrom(1);
  for (Version version = 1; version <= 3; ++version) ReplayOn(&shard, &history, RecordAt(version, 1));
  ReplayOn(&shard, &history, RecordAt(4, 5, 1));
  ASSERT_EQ(shard.term(), 5u);
  EXPECT_FALSE(ReplayOn(&shard, &history, RecordAt(5, 8, 1))) << "whatever its version is";
  ASSERT_TRUE(history.forked());
  history.BeginAgain();
  EXPECT_TRUE(history.HasEnded(5, 4));
  EXPECT_FALSE(history.HasEnded(1, 3));

  Shard again(0);
  for (Version version = 1; version <= 3; ++version) ReplayOn(&again, &history, RecordAt(version, 1));
  EXPECT_FALSE(ReplayOn(&again, &history, RecordAt(4, 5, 1)));
  EXPECT_TRUE(ReplayOn(&again, &history, RecordAt(4, 8, 1)));
  EXPECT_FALSE(history.forked());
}

TEST(ShardHistory, ATermThatBeganWhereTheShardIsGoesOn) {
  Shard shard(0);
  ShardHistory history;
  history.StartFrom(1);
  ReplayOn(&shard, &history, RecordAt(1, 1));
  EXPECT_TRUE(ReplayOn(&shard, &history, RecordAt(2, 8, 1)));
  EXPECT_FALSE(history.forked());
}

}  // namespace
}  // namespace lodestone::server
