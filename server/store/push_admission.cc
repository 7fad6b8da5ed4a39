#include "server/store/push_admission.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "server/store/push_call.h"
#include "server/store/shard_set.h"

namespace lodestone::server {

bool PushAdmission::AdmitAtOnce(PushCall* call) const {
  if (!call->guards.ok() || call->contributes) return false;
  for (size_t i = 0; i < call->tables.size(); ++i) {
    Table* const table = call->tables[i];
    if (table->is_dense() || !budget_->Bounds(*table)) continue;
    const uint64_t rows = table->counters().rows.load(std::memory_order_relaxed);
    if (call->room.Add(table, call->bytes_at_most[i], rows * EmbeddingTable::kIndexGrowthPerRow).ok()) continue;
    call->room.Release();
    return false;
  }
  return true;
}

void PushAdmission::Decide(const std::shared_ptr<PushCall>& call, std::function<void(absl::Status)> done) const {
  Executors& executors = shards_->executors();
  const auto asked = std::count_if(call->by_executor.begin(), call->by_executor.end(),
                                   [](const auto& pushes) { return !pushes.empty(); });
  call->executors_left.store(static_cast<size_t>(asked), std::memory_order_relaxed);
  const auto then = std::make_shared<std::function<void(absl::Status)>>(std::move(done));
  for (size_t e = 0; e < executors.size(); ++e) {
    if (call->by_executor[e].empty()) continue;
    executors[e].Submit([this, call, then, e] {
      Ask(call->header, call->by_executor[e]);
      if (call->executors_left.fetch_sub(1, std::memory_order_acq_rel) == 1) (*then)(Judge(call.get()));
    });
  }
}

void PushAdmission::Ask(const v1::PushRequest& header, std::span<ShardPush* const> pushes) const {
  for (ShardPush* const push : pushes) {
    push->bytes_needed.assign(push->parts.size(), 0);
    if (!shards_->Owns(push->shard->id())) {  // It may be owned again when the push would be applied.
      push->result = NotOwned(push->shard->id());
      continue;
    }
    push->duplicate = push->shard->HasApplied(header.worker_incarnation(), header.sequence());
    if (push->duplicate) continue;
    push->steps = push->shard->steps().Judge(push->parts, header.has_contribution() ? &header.contribution() : nullptr);
    if (!push->steps.ok()) continue;
    push->duplicate = push->steps->duplicate;
    if (push->duplicate) continue;
    for (size_t i = 0; i < push->parts.size(); ++i) {
      const PartView& part = push->parts[i];
      if (part.table->is_dense() || !budget_->Bounds(*part.table)) continue;
      push->bytes_needed[i] = push->shard->RowsOf(*part.table)->BytesFor(part.keys, part.row_count);
      push->parts[i].room_bytes = push->bytes_needed[i];
    }
  }
}

absl::Status PushAdmission::Judge(PushCall* call) const {
  for (const ShardPush& push : call->shards) LODESTONE_RETURN_IF_ERROR(push.result.status());
  for (const ShardPush& push : call->shards) LODESTONE_RETURN_IF_ERROR(push.steps.status());
  const bool accepted_before =
      std::any_of(call->shards.begin(), call->shards.end(), [](const ShardPush& push) { return push.duplicate; });
  if (accepted_before) {  // In full, or in part: then the rest follows.
    for (const ShardPush& push : call->shards) {
      for (size_t i = 0; i < push.parts.size(); ++i) call->room.AddAnyway(push.parts[i].table, push.bytes_needed[i]);
    }
    return absl::OkStatus();
  }
  LODESTONE_RETURN_IF_ERROR(call->guards);
  LODESTONE_RETURN_IF_ERROR(JudgeContribution(call));
  // First those that would refuse the push.
  for (const auto when_full : {v1::Admission::REFUSE_PUSH, v1::Admission::TURN_AWAY}) {
    for (Table* const table : call->tables) {
      if (table->is_dense() || table->spec().embedding().admission().when_full() != when_full) continue;
      for (ShardPush& push : call->shards) LODESTONE_RETURN_IF_ERROR(MakeRoom(call, &push, table));
    }
  }
  return absl::OkStatus();
}

absl::Status PushAdmission::JudgeContribution(PushCall* call) const {
  if (!call->contributes) return absl::OkStatus();
  const bool ahead =
      std::any_of(call->shards.begin(), call->shards.end(), [](const ShardPush& push) { return push.steps->ahead; });
  // What later steps may take is half of it, so that there is room for the one that everything waits for.
  const uint64_t bytes_max = ahead ? limits::kContributionBytesMax / 2 : limits::kContributionBytesMax;
  for (size_t i = 0; i < call->contribution_bytes.size(); ++i) {
    if (call->contribution_bytes[i] == 0) continue;
    Table* const table = call->tables[i];
    const uint64_t waiting = table->counters().contribution_bytes.load(std::memory_order_relaxed);
    if (waiting + call->contribution_bytes[i] > bytes_max) {
      return absl::ResourceExhaustedError(
          absl::StrCat("contributions to steps of table `", table->name(), "` that wait on this ps take ", waiting,
                       " bytes, and ", call->contribution_bytes[i], " more are over the limit of ", bytes_max,
                       "; more servers share them, or give the table's consistency fewer batches"));
    }
    LODESTONE_RETURN_IF_ERROR(call->room.Add(table, call->contribution_bytes[i]));
  }
  return absl::OkStatus();
}

absl::Status PushAdmission::MakeRoom(PushCall* call, ShardPush* push, Table* table) const {
  uint64_t bytes = 0;
  for (size_t i = 0; i < push->parts.size(); ++i) {
    if (push->parts[i].table == table) bytes += push->bytes_needed[i];
  }
  const absl::Status status = call->room.Add(table, bytes);
  if (status.ok() || table->spec().embedding().admission().when_full() == v1::Admission::REFUSE_PUSH) return status;
  for (PartView& part : push->parts) {
    if (part.table != table) continue;
    part.takes_new = false;
    part.room_bytes = 0;
  }
  return absl::OkStatus();
}

}  // namespace lodestone::server
