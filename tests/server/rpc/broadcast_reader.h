// A subscriber's end of a stream that applies every delta and checks the order of things as it does.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/wire/message.h"
#include "common/wire/shard_map.h"
#include "gtest/gtest.h"
#include "server/rpc/broadcaster.h"
#include "server/rpc/delta_sink.h"
#include "server/rpc/subscriber.h"
#include "server/store/store.h"

namespace lodestone::server {

class Reader final : public DeltaSink {
 public:
  // What is known of a table.
  struct Table {
    BlockLayout layout;  // Dense.
    uint32_t dim = 0;    // Embedding.
  };
  enum class Answer { kAtOnce, kByHand };
  Reader(std::map<TableId, Table> tables, Answer answer) : tables_(std::move(tables)), answer_(answer) {}

  // Both before the stream starts.
  void Connect(std::shared_ptr<Subscriber> subscriber) { subscriber_ = std::move(subscriber); }
  Subscriber& subscriber() { return *subscriber_; }

  // Before the stream starts: these versions are held from an earlier one.
  void Has(const std::map<ShardId, Version>& versions) {
    MutexLock lock(&mu_);
    versions_ = versions;
  }

  void Write(v1::Delta delta, std::vector<grpc::Slice> slices) override {
    bool answer;
    {
      MutexLock lock(&mu_);
      EXPECT_FALSE(writing_) << "a write before the last one was answered";
      EXPECT_FALSE(end_.has_value()) << "a write after the end";
      writers_.insert(std::this_thread::get_id());
      answer = answer_ == Answer::kAtOnce;
      writing_ = !answer;
      const Payload payload(std::move(slices));
      Apply(delta, payload);
      deltas_.push_back({std::move(delta), payload.size()});
      changed_.NotifyAll();
    }
    if (answer) subscriber_->OnWritten(true);
  }

  void EndIfUnread(int64_t) override { ++unread_asked_; }

  void Finish(absl::Status status) override {
    MutexLock lock(&mu_);
    EXPECT_FALSE(writing_) << "an end during a write";
    EXPECT_FALSE(end_.has_value()) << "a second end";
    end_ = std::move(status);
    changed_.NotifyAll();
  }

  // Answers the write under way.
  void AnswerByHand(bool ok) {
    {
      MutexLock lock(&mu_);
      EXPECT_TRUE(writing_);
      writing_ = false;
    }
    subscriber_->OnWritten(ok);
  }

  // Waits for that many messages in all.
  void AwaitDeltas(size_t count) {
    MutexLock lock(&mu_);
    while (deltas_.size() < count) changed_.Wait(&mu_);
  }
  // Waits until each shard's version is at least that of `versions`.
  void AwaitVersions(const std::map<ShardId, Version>& versions) {
    MutexLock lock(&mu_);
    while (!HoldsAtLeast(versions)) changed_.Wait(&mu_);
  }
  // Waits until the stream is ended, and tells how.
  absl::Status AwaitEnd() {
    MutexLock lock(&mu_);
    while (!end_.has_value()) changed_.Wait(&mu_);
    return *end_;
  }

  // Leaves; returns when the stream is ended. A stream that was never started is left alone.
  void Leave() {
    if (subscriber_ == nullptr) return;
    bool answer;
    {
      MutexLock lock(&mu_);
      if (end_.has_value()) return;
      answer = writing_;
      answer_ = Answer::kAtOnce;
    }
    subscriber_->Cancel(absl::CancelledError("left"));
    if (answer) AnswerByHand(false);
    EXPECT_FALSE(AwaitEnd().ok());
  }

  // How often it was asked whether it is read.
  int unread_asked() const { return unread_asked_; }

  struct Message {
    v1::Delta delta;
    size_t payload_bytes = 0;
  };
  std::vector<Message> deltas() const {
    MutexLock lock(&mu_);
    return deltas_;
  }
  std::map<ShardId, Version> versions() const {
    MutexLock lock(&mu_);
    return versions_;
  }
  bool ended() const {
    MutexLock lock(&mu_);
    return end_.has_value();
  }
  // The threads that have written.
  std::set<std::thread::id> writers() const {
    MutexLock lock(&mu_);
    return writers_;
  }
  // Version and bytes of each block held of a dense table.
  std::map<BlockIndex, std::pair<Version, std::string>> blocks(TableId table) const {
    MutexLock lock(&mu_);
    std::map<BlockIndex, std::pair<Version, std::string>> blocks;
    for (const auto& [id, value] : blocks_) {
      if (id.first == table) blocks[id.second] = {value.version, value.bytes};
    }
    return blocks;
  }
  // Bytes of each row held of an embedding table.
  std::map<Key, std::string> rows(TableId table) const {
    MutexLock lock(&mu_);
    std::map<Key, std::string> rows;
    for (const auto& [id, value] : rows_) {
      if (id.first == table) rows[id.second] = value.bytes;
    }
    return rows;
  }

 private:
  struct Value {
    ShardId shard = 0;
    Version version = 0;
    std::string bytes;
  };

  bool HoldsAtLeast(const std::map<ShardId, Version>& versions) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (const auto& [shard, version] : versions) {
      const auto found = versions_.find(shard);
      if (found == versions_.end() || found->second < version) return false;
    }
    return true;
  }

  void Apply(const v1::Delta& message, const Payload& payload) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    ByteView rest = payload.bytes();
    auto take = [&](size_t size) {
      EXPECT_LE(size, rest.size());
      std::string bytes(size, '\0');
      rest.Take(size).CopyTo(bytes.data());
      return bytes;
    };
    for (const v1::Delta::ShardDelta& delta : message.shards()) {
      const ShardId shard = delta.shard();
      if (delta.anchor()) {
        EXPECT_FALSE(begun_.contains(shard)) << "an anchor in the midst of a change";
        std::erase_if(blocks_, [&](const auto& entry) { return entry.second.shard == shard; });
        std::erase_if(rows_, [&](const auto& entry) { return entry.second.shard == shard; });
      } else if (!begun_.contains(shard)) {
        EXPECT_EQ(delta.from_version(), versions_[shard]) << "a change that starts elsewhere, shard " << shard;
      }
      begun_.insert(shard);
      for (const v1::Part& part : delta.parts()) ApplyPart(part, shard, take);
      if (!delta.complete()) continue;
      begun_.erase(shard);
      versions_[shard] = delta.version();
    }
    EXPECT_TRUE(rest.empty());
  }

  void ApplyPart(const v1::Part& part, ShardId shard, const std::function<std::string(size_t)>& take)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const TableId id = part.table();
    const Table& table = tables_.at(id);
    for (int i = 0; i < part.blocks_size(); ++i) {
      const BlockIndex block = part.blocks(i);
      blocks_[{id, block}] = {shard, part.block_versions(i), take(table.layout.ElementsOf(block) * sizeof(float))};
    }
    for (uint32_t i = 0; i < part.evicted_count(); ++i) rows_.erase({id, KeyOf(take(sizeof(Key)))});
    std::vector<Key> keys;
    for (uint32_t i = 0; i < part.row_count(); ++i) keys.push_back(KeyOf(take(sizeof(Key))));
    for (const Key key : keys) rows_[{id, key}] = {shard, 0, take(table.dim * sizeof(float))};
  }

  static Key KeyOf(const std::string& bytes) { return LoadAt<Key>(reinterpret_cast<const uint8_t*>(bytes.data()), 0); }

  const std::map<TableId, Table> tables_;
  std::shared_ptr<Subscriber> subscriber_;
  std::atomic<int> unread_asked_{0};

  mutable Mutex mu_;
  CondVar changed_;
  Answer answer_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;  // By hand: a write waits for its answer.
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
  std::vector<Message> deltas_ ABSL_GUARDED_BY(mu_);
  std::set<std::thread::id> writers_ ABSL_GUARDED_BY(mu_);
  std::map<ShardId, Version> versions_ ABSL_GUARDED_BY(mu_);
  std::set<ShardId> begun_ ABSL_GUARDED_BY(mu_);  // Shards with a change of which not all pieces came.
  std::map<std::pair<TableId, BlockIndex>, Value> blocks_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<TableId, Key>, Value> rows_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lodestone::server
