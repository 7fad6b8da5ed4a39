// The rollback of a table to what it held in a checkpoint or at a version (Admin.Rollback).
//
// Thread safety: one thread at a time calls Run; any thread Stop. `dir` and `time` must outlive it.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/time_source.h"
#include "proto/admin.pb.h"
#include "proto/config.pb.h"
#include "proto/table.pb.h"
#include "server/durability/data_dir.h"
#include "server/durability/past_parts.h"

namespace lodestone::server {

class Store;

class TableRollback {
 public:
  // `on_wait` is called with what is waited for, on the thread of Run.
  TableRollback(const v1::Config& config, const DataDir* dir, const TimeSource* time,
                std::function<void(std::string)> on_wait)
      : config_(config), dir_(dir), time_(time), on_wait_(std::move(on_wait)) {}

  // Returns when all is durable. NOT_FOUND if there is no such table or checkpoint; FAILED_PRECONDITION if there is no
  // log to find a version in, or the table had another layout; CANCELLED after Stop. An error says how many shards have
  // gone back.
  absl::StatusOr<v1::RollbackResponse> Run(const v1::RollbackRequest& request, Store* store);
  // Makes a Run that is under way, and all later ones, return CANCELLED soon.
  void Stop() { stop_.store(true); }

 private:
  // Where the table is taken from.
  absl::StatusOr<PastParts> OpenPast(const v1::RollbackRequest& request, const v1::TableSpec& table, const Store& store,
                                     const std::vector<ShardId>& shards) const;

  const v1::Config config_;
  const DataDir* const dir_;
  const TimeSource* const time_;
  const std::function<void(std::string)> on_wait_;
  std::atomic<bool> stop_{false};
};

}  // namespace lodestone::server
