// A store with its shards, and shorthand to push to it, pull from it and apply its changes.
#pragma once

#include <latch>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/time_source.h"
#include "common/wire/message.h"
#include "common/wire/shard_map.h"
#include "gtest/gtest.h"
#include "server/store/store.h"

namespace lodestone::server {

inline constexpr Incarnation kWorker = 100;

// A dense table that adds what is pushed to it.
inline v1::TableSpec AddingDense(const std::string& name, uint64_t elements, uint32_t block_elements) {
  v1::TableSpec spec;
  spec.set_name(name);
  spec.mutable_dense()->add_dims(elements);
  spec.mutable_dense()->set_block_elements(block_elements);
  spec.mutable_optimizer()->mutable_sgd();
  spec.mutable_optimizer()->set_learning_rate(-1);
  return spec;
}

// An embedding table that adds what is pushed to it.
inline v1::TableSpec AddingRows(const std::string& name, uint32_t dim) {
  v1::TableSpec spec;
  spec.set_name(name);
  spec.mutable_embedding()->set_dim(dim);
  spec.mutable_optimizer()->mutable_sgd();
  spec.mutable_optimizer()->set_learning_rate(-1);
  return spec;
}

// A push or pull under construction: header parts and payload.
template <typename Request>
class RequestBuilder {
 public:
  explicit RequestBuilder(uint32_t shards) : shards_(shards) {}

  Request header;

  // Adds all blocks of a dense table, one part per shard; a push has `value` in every element.
  void AddDense(TableId table, const BlockLayout& layout, std::optional<float> value) {
    std::map<ShardId, std::vector<BlockIndex>> by_shard;
    for (BlockIndex b = 0; b < layout.block_count(); ++b) by_shard[ShardOfBlock(table, b, shards_)].push_back(b);
    for (const auto& [shard, blocks] : by_shard) {
      v1::Part* part = header.add_parts();
      part->set_shard(shard);
      part->set_table(table);
      for (const BlockIndex b : blocks) {
        part->add_blocks(b);
        if (value.has_value()) AppendRepeated(*value, layout.ElementsOf(b));
      }
    }
  }

  // Adds rows, one part per shard; a push has the number beside the key in every element.
  void AddRows(TableId table, uint32_t dim, const std::vector<std::pair<Key, float>>& rows, bool with_values) {
    std::map<ShardId, std::vector<std::pair<Key, float>>> by_shard;
    for (const auto& row : rows) by_shard[ShardOfKey(row.first, shards_)].push_back(row);
    for (const auto& [shard, part_rows] : by_shard) {
      v1::Part* part = header.add_parts();
      part->set_shard(shard);
      part->set_table(table);
      part->set_row_count(static_cast<uint32_t>(part_rows.size()));
      for (const auto& row : part_rows) Append(row.first);
      if (!with_values) continue;
      for (const auto& row : part_rows) AppendRepeated(row.second, dim);
    }
  }

  template <typename T>
  void Append(T value) {
    payload_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void AppendRepeated(float value, size_t n) {
    for (size_t i = 0; i < n; ++i) Append(value);
  }

  // The payload, deliberately unaligned, and in two slices.
  Payload payload() const {
    std::string padded = payload_;
    padded.insert(padded.begin(), 'x');
    const size_t cut = 2 + payload_.size() / 3;
    Payload payload({grpc::Slice(padded.substr(0, cut)), grpc::Slice(padded.size() > cut ? padded.substr(cut) : "")});
    payload.Take(1);
    return payload;
  }
  std::string& bytes() { return payload_; }

 private:
  const uint32_t shards_;
  std::string payload_;
};

class StoreTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kShards = 8;

  void Make(Store::Options options = {}) {
    options.shards = kShards;
    if (options.executors == 1) options.executors = 2;
    options.time = &time_;
    store_ = std::make_unique<Store>(options);
    std::vector<ShardId> all;
    for (ShardId shard = 0; shard < kShards; ++shard) all.push_back(shard);
    store_->OwnShards(all);
  }

  absl::StatusOr<v1::EnsureTablesResponse> Ensure(const std::vector<v1::TableSpec>& specs,
                                                  Incarnation worker = kWorker) {
    v1::EnsureTablesRequest request;
    request.set_worker_incarnation(worker);
    for (const auto& spec : specs) *request.add_tables() = spec;
    return store_->EnsureTables(request);
  }

  RequestBuilder<v1::PushRequest> NewPush(Sequence sequence, Incarnation worker = kWorker) {
    RequestBuilder<v1::PushRequest> push(kShards);
    push.header.set_worker_incarnation(worker);
    push.header.set_sequence(sequence);
    return push;
  }

  absl::StatusOr<v1::PushResponse> Push(const RequestBuilder<v1::PushRequest>& push) {
    std::optional<absl::StatusOr<v1::PushResponse>> result;
    std::latch done(1);
    store_->pushes().Push(push.header, push.payload(), [&](absl::StatusOr<v1::PushResponse> response) {
      result = std::move(response);
      done.count_down();
    });
    done.wait();
    return *std::move(result);
  }

  absl::StatusOr<PullPath::Values> Pull(const RequestBuilder<v1::PullRequest>& pull) {
    std::optional<absl::StatusOr<PullPath::Values>> result;
    std::latch done(1);
    store_->pulls().Pull(pull.header, pull.payload(), [&](absl::StatusOr<PullPath::Values> values) {
      result = std::move(values);
      done.count_down();
    });
    done.wait();
    return *std::move(result);
  }

  static std::string Concatenate(const std::vector<grpc::Slice>& slices) {
    std::string bytes;
    for (const grpc::Slice& s : slices) bytes.append(reinterpret_cast<const char*>(s.begin()), s.size());
    return bytes;
  }

  static std::vector<float> Floats(const std::string& bytes) {
    std::vector<float> floats(bytes.size() / sizeof(float));
    std::memcpy(floats.data(), bytes.data(), floats.size() * sizeof(float));
    return floats;
  }

  // Every block of a dense table: its version and bytes.
  using Blocks = std::map<BlockIndex, std::pair<Version, std::string>>;
  Blocks PullBlocks(TableId table, const BlockLayout& layout) {
    RequestBuilder<v1::PullRequest> pull(kShards);
    pull.AddDense(table, layout, std::nullopt);
    auto values = Pull(pull);
    EXPECT_TRUE(values.ok()) << values.status();
    Blocks blocks;
    size_t slice = 0;
    for (const v1::Part& part : values->header.parts()) {
      for (int i = 0; i < part.blocks_size(); ++i) {
        blocks[part.blocks(i)] = {part.block_versions(i), Concatenate({values->payload[slice++]})};
      }
    }
    return blocks;
  }

  // The first elements of some rows.
  std::vector<float> PullRows(TableId table, uint32_t dim, const std::vector<Key>& keys) {
    std::vector<float> firsts;
    for (const Key key : keys) {
      RequestBuilder<v1::PullRequest> pull(kShards);
      pull.AddRows(table, dim, {{key, 0.0f}}, false);
      auto values = Pull(pull);
      EXPECT_TRUE(values.ok()) << values.status();
      firsts.push_back(Floats(Concatenate(values->payload))[0]);
    }
    return firsts;
  }

  ShardChange Change(ShardId shard, const DeltaPath::Subscription& subscription, std::optional<Version> from) {
    std::optional<ShardChange> result;
    std::latch done(1);
    std::optional<DeltaPath::Held> held;
    if (from.has_value()) held = DeltaPath::Held{.term = 0, .version = *from};
    store_->deltas().Collect(shard, subscription, held, [&](absl::StatusOr<ShardChange> change) {
      EXPECT_TRUE(change.ok()) << change.status();
      if (change.ok()) result = *std::move(change);
      done.count_down();
    });
    done.wait();
    return std::move(result).value_or(ShardChange());
  }

  ManualTime time_;
  std::unique_ptr<Store> store_;
};

}  // namespace lodestone::server
