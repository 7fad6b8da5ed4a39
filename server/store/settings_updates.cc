#include "server/store/settings_updates.h"

#include <limits>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/config/table_check.h"
#include "server/shard/shard.h"
#include "server/store/commit_log.h"
#include "server/store/commit_wait.h"
#include "server/store/serving_gate.h"
#include "server/store/shard_set.h"
#include "server/store/step_closer.h"
#include "server/store/table_entry.h"

namespace lodestone::server {
namespace {

constexpr uint64_t kAllSteps = std::numeric_limits<uint64_t>::max();

}  // namespace

bool StepsGoOn(const v1::Consistency& from, const v1::Consistency& to) {
  if (from.has_sync() && to.has_sync()) return from.sync().batches() == to.sync().batches();
  if (from.has_tokens() && to.has_tokens()) return from.tokens().batch() == to.tokens().batch();
  return !StepCollector::Collects(from) && !StepCollector::Collects(to);
}

absl::Status SettingsUpdates::ApplyCompleteSteps(const Table& table) {
  for (const ShardId shard : shards_->owned()) {
    LODESTONE_RETURN_IF_ERROR(OnOwned(shard, [&](Shard* one) { return closer_->Release(one, table.id(), kAllSteps); }));
  }
  return absl::OkStatus();
}

absl::Status SettingsUpdates::CheckNothingWaits(const Table& table) {
  for (const ShardId shard : shards_->owned()) {
    LODESTONE_RETURN_IF_ERROR(OnOwned(shard, [&](Shard* one) -> absl::Status {
      const StepCollector* const collector = one->steps().Of(table.id());
      if (collector == nullptr) return absl::OkStatus();
      LODESTONE_RETURN_IF_ERROR(closer_->Release(one, table.id(), kAllSteps));
      if (collector->pending().empty()) return absl::OkStatus();
      return absl::FailedPreconditionError(absl::StrCat(
          "the consistency of table `", table.name(), "` cannot be another one in the middle of a step: on ", "shard ",
          shard, " step ", collector->steps(), " has ", collector->Progress(),
          "; try again when it has ended, or roll the table back to drop it"));
    }));
  }
  return absl::OkStatus();
}

absl::Status SettingsUpdates::Bring(const Table& table, const TableSettings* settings,
                                    std::span<const ShardId> shards) {
  LODESTONE_RETURN_IF_ERROR(log_->health());
  for (const ShardId shard : shards) {  // Before anything has changed.
    if (shards_->RoleOf(shard) != ShardRole::kGivesUp) continue;
    absl::Status given_up;
    shards_->Run(shard, [&](Shard* one) { given_up = CheckGivenUp(table, *settings, *one); });
    LODESTONE_RETURN_IF_ERROR(given_up);
  }
  // It does not wait for followers. One of them may be waiting until this change ends, as only one is made at a time;
  // what a follower lacks when it takes a shard over, Prepare brings there.
  const bool logs = log_->LogOf(0) != nullptr;
  CommitWait wait(logs ? shards.size() : 0);
  absl::Status failed;
  for (const ShardId shard : shards) {
    shards_->Run(shard, [&](Shard* one) {
      std::vector<ShardLog::Record> records;
      if (shards_->Owns(shard)) {
        auto changed = Change(table, settings, /*served=*/true, one);
        failed.Update(changed.status());
        if (changed.ok()) records = *std::move(changed);
      } else {
        failed.Update(CheckGivenUp(table, *settings, *one));
      }
      log_->Stamp(one, time_->NowMs(), records);
      if (!log_->HasLogOrFollowers()) return;
      const ReplicaSink::Position position = {shard, one->version()};
      // Without a record too: it waits for what BringLater appended.
      log_->Append(shards_->ExecutorOf(shard), records, {&position, records.size()}, nullptr,
                   [&wait](CommitEnd end, const absl::Status& done) {
                     if (end == CommitEnd::kLog) wait.Done(done);
                   });
    });
  }
  LODESTONE_RETURN_IF_ERROR(wait.Wait());
  return failed;
}

absl::Status SettingsUpdates::OnOwned(ShardId shard, const std::function<absl::Status(Shard*)>& use) {
  absl::Status status;
  shards_->Run(shard, [&](Shard* one) {
    if (shards_->Owns(shard)) status = use(one);
  });
  return status;
}

absl::StatusOr<std::vector<ShardLog::Record>> SettingsUpdates::Change(const Table& table, const TableSettings* settings,
                                                                      bool served, Shard* shard) {
  std::vector<ShardLog::Record> records;
  if (shard->SettingsOf(table).spec.revision() >= settings->spec.revision()) return records;
  LODESTONE_RETURN_IF_ERROR(EndSteps(table, settings->spec.consistency(), served, shard));
  shard->ChangeSettings(table, settings);
  shards_->TellChanged(shard->id());
  *records.emplace_back().message.mutable_settings() = settings->spec;
  records.back().message.set_table_known(true);
  return records;
}

absl::Status SettingsUpdates::EndSteps(const Table& table, const v1::Consistency& next, bool served, Shard* shard) {
  const v1::Consistency& now = shard->SettingsOf(table).spec.consistency();
  if (!StepCollector::Collects(now) || Differences(now, next).empty()) return absl::OkStatus();
  LODESTONE_RETURN_IF_ERROR(closer_->Release(shard, table.id(), kAllSteps, served));
  // A shard that comes from another ps may have contributions yet.
  return StepsGoOn(now, next) ? absl::OkStatus() : closer_->EndSteps(shard, table.id(), served);
}

absl::Status SettingsUpdates::CheckGivenUp(const Table& table, const TableSettings& settings,
                                           const Shard& shard) const {
  if (shards_->RoleOf(shard.id()) != ShardRole::kGivesUp) return absl::OkStatus();  // It is followed, or owned again.
  const v1::TableSpec& has = shard.SettingsOf(table).spec;
  if (has.revision() >= settings.spec.revision() || StepsGoOn(has.consistency(), settings.spec.consistency())) {
    return absl::OkStatus();
  }
  // Its next owner may have been asked already, before it knew the table.
  return absl::UnavailableError(absl::StrCat("shard ", shard.id(),
                                             " is just given to another ps, and its steps of table `", table.name(),
                                             "` would begin or end; try again when it is there"));
}

absl::Status SettingsUpdates::ChangeUnawaited(const Table& table, bool served, Shard* shard) {
  LODESTONE_ASSIGN_OR_RETURN(std::vector<ShardLog::Record> records, Change(table, &table.settings(), served, shard));
  if (!records.empty()) log_->AppendUnawaited(shard, time_->NowMs(), std::move(records));
  return absl::OkStatus();
}

void SettingsUpdates::Prepare(const TableMap& tables, Shard* shard) {
  for (const auto& [id, entry] : tables) {
    if (!entry->table->settings().changed()) continue;
    const absl::Status updated = ChangeUnawaited(*entry->table, /*served=*/false, shard);
    LODESTONE_CHECK(updated.ok());  // Where it is not served yet, nothing is refused.
  }
}

void SettingsUpdates::BringLater(std::shared_ptr<const TableMap> tables) {
  const bool any = absl::c_any_of(*tables, [](const auto& one) { return one.second->table->settings().changed(); });
  if (!any) return;
  for (const ShardId shard : shards_->owned()) {
    shards_->executors()[shards_->ExecutorOf(shard)].Submit([this, tables, shard] {
      if (!shards_->Owns(shard) || !log_->health().ok() || !gate_->CheckServing().ok()) return;
      for (const auto& [id, entry] : *tables) {
        if (!entry->table->settings().changed()) continue;
        (void)ChangeUnawaited(*entry->table, /*served=*/true, shards_->Get(shard));  // It is tried again.
      }
    });
  }
}

}  // namespace lodestone::server
