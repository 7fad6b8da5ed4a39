// A ps that keeps its shards in a folder, and shorthand to start, fill and look into it. A ps that was killed is what
// is left of its folder: here, a copy of the folder that is taken while the ps runs.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <latch>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/durability/storage.h"
#include "server/monitoring/event_log.h"
#include "server/shard/content_checksum.h"
#include "tests/server/store/held_table.h"
#include "tests/server/store/store_fixture.h"

namespace lodestone::server {

// A store and its folder.
struct Ps {
  std::unique_ptr<Store> store;
  std::unique_ptr<Storage> storage;  // First to go.
  absl::Status status;               // Of its start.
};

class StorageFixture : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr uint32_t kShards = 8;
  static constexpr uint64_t kElements = 1000;
  static constexpr uint32_t kBlockElements = 64;
  static constexpr uint32_t kDim = 2;

  StorageFixture() {
    const auto* const info = ::testing::UnitTest::GetInstance()->current_test_info();
    std::string name = absl::StrCat(info->test_suite_name(), ".", info->name());
    std::replace(name.begin(), name.end(), '/', '_');
    root_ = std::filesystem::path(::testing::TempDir()) / name;
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
    config_ = MakeConfig("a");
  }
  ~StorageFixture() override { std::filesystem::remove_all(root_); }

  // Of a ps in the folder `data`.
  v1::Config MakeConfig(const std::string& data) const {
    v1::Config config;
    config.mutable_cluster()->set_shards(kShards);
    config.mutable_cluster()->set_servers(1);
    config.mutable_server()->set_data_dir((root_ / data).string());
    config.mutable_checkpoint()->set_every_ms(0);
    return config;
  }

  // Of one of several ps, in a folder of its own, with one folder of checkpoints for all.
  v1::Config MakeConfigOf(uint32_t server, uint32_t servers) const {
    v1::Config config = MakeConfig(absl::StrCat("ps", server));
    config.mutable_cluster()->set_servers(servers);
    config.mutable_server()->set_index(server);
    config.mutable_checkpoint()->set_dir((root_ / "checkpoints").string());
    return config;
  }

  // What a kill would leave of the ps in `config_`, as the folder of a new configuration.
  v1::Config Killed() {
    const std::string copy = absl::StrCat("copy", ++copies_);
    std::filesystem::copy(config_.server().data_dir(), root_ / copy, std::filesystem::copy_options::recursive);
    v1::Config config = config_;
    config.mutable_server()->set_data_dir((root_ / copy).string());
    return config;
  }

  // Damages the middle of each file of its log.
  void DamageLogs(const v1::Config& config) const {
    for (const std::filesystem::path& segment : Segments(config)) {
      std::fstream file(segment, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(static_cast<std::streamoff>(std::filesystem::file_size(segment) / 2));
      file.put('\x5a').put('\x5a').put('\x5a');
    }
  }

  Ps Start(const v1::Config& config, FileCalls calls = FileCalls::System()) {
    Ps ps = Open(config, std::move(calls));
    if (ps.status.ok()) BringBack(config, &ps);
    return ps;
  }
  // The two steps of a start.
  Ps Open(const v1::Config& config, FileCalls calls = FileCalls::System()) {
    Ps ps;
    Store::Options options;
    options.shards = kShards;
    options.executors = 2;
    options.turn_ns = 0;  // A push lets pulls go first after each shard.
    options.time = &holding_time_;
    ps.store = std::make_unique<Store>(options);
    auto storage = Storage::Open(config, &time_, &events_, std::move(calls));
    ps.status = storage.status();
    if (storage.ok()) ps.storage = *std::move(storage);
    return ps;
  }
  static void BringBack(const v1::Config& config, Ps* ps) {
    std::vector<ShardId> shards;
    for (ShardId shard = config.server().index(); shard < kShards; shard += config.cluster().servers()) {
      shards.push_back(shard);
    }
    ps->status = ps->storage->Recover(ps->store.get(), shards);
  }
  Ps StartWell(const v1::Config& config) {
    Ps ps = Start(config);
    EXPECT_TRUE(ps.status.ok()) << ps.status;
    return ps;
  }

  static void EnsureTables(const Ps& ps, Incarnation worker = kWorker) {
    v1::EnsureTablesRequest request;
    request.set_worker_incarnation(worker);
    *request.add_tables() = AddingDense("dense", kElements, kBlockElements);
    *request.add_tables() = AddingRows("rows", kDim);
    const auto response = ps.store->EnsureTables(request);
    EXPECT_TRUE(response.ok()) << response.status();
  }

  // Pushes `value` to every element of the dense table and to 50 rows.
  static absl::StatusOr<v1::PushResponse> Push(const Ps& ps, Sequence sequence, float value,
                                               Incarnation worker = kWorker) {
    RequestBuilder<v1::PushRequest> push(kShards);
    push.header.set_worker_incarnation(worker);
    push.header.set_sequence(sequence);
    push.AddDense(TableIdOf("dense"), {kElements, kBlockElements}, value);
    std::vector<std::pair<Key, float>> rows;
    for (Key key = 0; key < 50; ++key) rows.emplace_back(key * sequence, value);
    push.AddRows(TableIdOf("rows"), kDim, rows, true);
    return Push(ps, push);
  }
  static absl::StatusOr<v1::PushResponse> Push(const Ps& ps, const RequestBuilder<v1::PushRequest>& push) {
    std::optional<absl::StatusOr<v1::PushResponse>> result;
    std::latch done(1);
    ps.store->pushes().Push(push.header, push.payload(), [&](absl::StatusOr<v1::PushResponse> response) {
      result = std::move(response);
      done.count_down();
    });
    done.wait();
    return *std::move(result);
  }
  static void PushMany(const Ps& ps, Sequence first, Sequence last) {
    for (Sequence s = first; s <= last; ++s) {
      const auto pushed = Push(ps, s, static_cast<float>(s));
      ASSERT_TRUE(pushed.ok()) << pushed.status();
      ASSERT_FALSE(pushed->shards(0).duplicate());
    }
  }

  // What each shard holds, in one number; of shards without any update nothing.
  static std::map<ShardId, uint64_t> Content(const Ps& ps) {
    std::map<ShardId, uint64_t> content;
    for (const ShardId shard : ps.store->shards().adopted()) {
      if (ps.store->shards().VersionOf(shard) == 0) continue;
      ps.store->shards().Run(shard,
                             [&](Shard* owned) { content[shard] = ContentChecksum(owned->CollectState(nullptr)); });
    }
    return content;
  }
  static v1::StorageStatus StatusOf(const Ps& ps) {
    v1::StatusResponse status;
    ps.storage->FillStatus(&status);
    return status.storage();
  }
  // The files of the log, oldest first.
  std::vector<std::filesystem::path> Segments(const v1::Config& config) const {
    std::vector<std::filesystem::path> segments;
    for (const auto& entry :
         std::filesystem::directory_iterator(std::filesystem::path(config.server().data_dir()) / "ps-0" / "log")) {
      segments.push_back(entry.path());
    }
    std::sort(segments.begin(), segments.end());
    return segments;
  }

  std::filesystem::path root_;
  // "ps 0 checkpointed: text" of all that was told.
  std::vector<std::string> Events() const {
    std::vector<std::string> lines;
    const v1::EventsResponse told = events_.Tell(0);
    for (const v1::Event& event : told.events()) {
      lines.push_back(absl::StrCat(event.who(), " ", event.kind(), ": ", event.text()));
    }
    return lines;
  }

  ManualTime time_;
  HoldingTime holding_time_{&time_};  // Of the stores.
  EventLog events_{&time_};
  v1::Config config_;
  int copies_ = 0;
};

}  // namespace lodestone::server
