#include "server/replication/bootstrap.h"

#include <optional>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/telemetry/log.h"
#include "server/checkpoint/shard_file.h"
#include "server/replication/replicator.h"
#include "server/shard/shard.h"
#include "server/store/store.h"

namespace lodestone::server {
namespace {

v1::ShardPosition PositionOf(const Shard::State& state) {
  v1::ShardPosition position;
  position.set_shard(state.shard);
  position.set_term(state.term);
  position.set_version(state.version);
  return position;
}

}  // namespace

Bootstrap::Bootstrap(Replicator* replicator, const Store* store, std::shared_ptr<FollowStream> stream,
                     v1::FollowStart start)
    : replicator_(replicator), store_(store), stream_(std::move(stream)), start_(std::move(start)), thread_([this] {
        Run();
        done_.store(true);
      }) {}

void Bootstrap::Run() {
  SendCatalog();
  size_t states = 0;
  for (const v1::ShardPosition& position : start_.follows()) {
    std::optional<Shard::State> state;
    absl::Status status = replicator_->Attach(stream_, position, &state);
    if (status.ok() && state.has_value()) status = SendState(*state);
    if (!status.ok()) return stream_->End(std::move(status));
    states += state.has_value();
  }
  LODESTONE_LOG(INFO, "replication", "is followed by ps={} shards={} of_these_with_their_state={}", start_.server(),
                start_.follows_size(), states);
}

void Bootstrap::SendCatalog() {
  v1::FollowItem item;
  const Sessions::Known known = store_->sessions().known();
  item.mutable_sessions()->mutable_open()->Add(known.open.begin(), known.open.end());
  item.mutable_sessions()->set_forgotten_max(known.forgotten_max);
  item.mutable_sessions()->mutable_ended()->Add(known.ended.begin(), known.ended.end());
  stream_->Send(MakePiece(item));
  for (v1::TableSpec& spec : store_->tables().specs()) {
    *item.mutable_table() = std::move(spec);
    stream_->Send(MakePiece(item));
  }
}

absl::Status Bootstrap::SendState(const Shard::State& state) {
  v1::FollowItem item;
  *item.mutable_state_begins() = PositionOf(state);
  stream_->Send(MakePiece(item));
  const RecordVisitor send = [&](const v1::CheckpointRecord& record, std::span<const ByteView> payload) {
    *item.mutable_state() = record;
    std::vector<grpc::Slice> slices;
    for (const ByteView& view : payload) {
      if (!view.empty()) slices.emplace_back(view.contiguous(), view.size());
    }
    if (!stream_->WaitForRoom()) return absl::UnavailableError("the stream has ended");
    stream_->Send(MakePiece(item, std::move(slices)));
    return absl::OkStatus();
  };
  LODESTONE_RETURN_IF_ERROR(VisitState(state, send));
  *item.mutable_state_ends() = PositionOf(state);
  return replicator_->FinishState(stream_, state.shard, MakePiece(item));
}

}  // namespace lodestone::server
