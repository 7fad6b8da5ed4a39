#include "server/replication/bootstrap.h"

#include <optional>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/telemetry/log.h"
#include "common/telemetry/metrics.h"
#include "server/checkpoint/shard_file.h"
#include "server/replication/catch_up.h"
#include "server/replication/copy_pace.h"
#include "server/replication/follow_stream.h"
#include "server/replication/replicator.h"
#include "server/shard/shard.h"
#include "server/store/store.h"
#include "server/wal/update_log.h"

namespace lodestone::server {
namespace {

CounterMetric states_metric("lodestone_ps_replication_states_total",
                            "States of shards that were copied to followers because no log had what they lacked.");

}  // namespace

Bootstrap::Bootstrap(Sources sources, std::shared_ptr<FollowStream> stream, v1::FollowStart start)
    : sources_(std::move(sources)), stream_(std::move(stream)), start_(std::move(start)), thread_([this] {
        if (absl::Status status = Run(); !status.ok()) stream_->End(std::move(status));
        done_.store(true);
      }) {}

absl::Status Bootstrap::Run() {
  SendCatalog();
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<v1::ShardPosition> rest, SendUpdates());
  for (const v1::ShardPosition& position : rest) LODESTONE_RETURN_IF_ERROR(SendState(position));
  LODESTONE_LOG(INFO, "replication", "is followed by ps={} shards={} of_these_with_their_state={}", start_.server(),
                start_.follows_size(), rest.size());
  return absl::OkStatus();
}

void Bootstrap::SendCatalog() {
  v1::FollowItem item;
  const Sessions::Known known = sources_.store->sessions().known();
  item.mutable_sessions()->mutable_open()->Add(known.open.begin(), known.open.end());
  item.mutable_sessions()->set_forgotten_max(known.forgotten_max);
  item.mutable_sessions()->mutable_ended()->Add(known.ended.begin(), known.ended.end());
  stream_->Send(MakePiece(item));
  for (v1::TableSpec& spec : sources_.store->tables().specs()) {
    *item.mutable_table() = std::move(spec);
    stream_->Send(MakePiece(item));
  }
}

absl::StatusOr<std::vector<v1::ShardPosition>> Bootstrap::SendUpdates() {
  UpdateLog* const log = sources_.updates ? sources_.updates() : nullptr;
  std::vector<v1::ShardPosition> rest, lacking;
  for (v1::ShardPosition position : start_.follows()) {
    if (position.lineage() == 0) position.set_lineage(start_.lineage());
    LODESTONE_ASSIGN_OR_RETURN(const bool resumed, sources_.replicator->Resume(stream_, position));
    if (resumed) continue;
    // What a copy of an earlier lineage has is not what its owner went back to.
    const bool one_history = position.lineage() >= sources_.store->shards().Get(position.shard())->lineage();
    (one_history && position.mark() != 0 ? lacking : rest).push_back(position);
  }
  if (lacking.empty()) return rest;
  CatchUp catch_up(sources_, log, stream_);
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<v1::ShardPosition> others, catch_up.Run(lacking));
  rest.insert(rest.end(), others.begin(), others.end());
  return rest;
}

absl::Status Bootstrap::SendState(const v1::ShardPosition& position) {
  LODESTONE_ASSIGN_OR_RETURN(const Replicator::Attached attached,
                             sources_.replicator->Attach(stream_, position, Replicator::Wanted::kState));
  if (!attached.state.has_value()) return absl::OkStatus();  // It resumes.
  const Shard::State& state = *attached.state;
  v1::ShardPosition of_state;
  of_state.set_shard(state.shard);
  of_state.set_term(state.term);
  of_state.set_version(state.version);
  of_state.set_mark(attached.mark);
  of_state.set_lineage(state.lineage);
  v1::FollowItem item;
  *item.mutable_state_begins() = of_state;
  stream_->Send(MakePiece(item));
  const RecordVisitor send = [&](const v1::CheckpointRecord& record, std::span<const ByteView> payload) {
    *item.mutable_state() = record;
    std::vector<grpc::Slice> slices;
    for (const ByteView& view : payload) {
      if (!view.empty()) slices.emplace_back(view.contiguous(), view.size());
    }
    FollowPieceRef piece = MakePiece(item, std::move(slices));
    if (!sources_.pace->Await(*stream_, piece->bytes) || !stream_->WaitForRoom(sources_.stalled_ms_max)) {
      return absl::UnavailableError("the stream has ended");
    }
    stream_->Send(std::move(piece));
    return absl::OkStatus();
  };
  LODESTONE_RETURN_IF_ERROR(VisitState(state, send));
  *item.mutable_state_ends() = of_state;
  states_metric.Add(1);
  return sources_.replicator->FinishState(stream_, state.shard, MakePiece(item));
}

}  // namespace lodestone::server
