// How a follower begins: what it is sent before the updates. And how its copy is compared.
#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"
#include "server/auth/authorized_caller.h"
#include "server/checkpoint/shard_file.h"
#include "server/replication/replicator.h"
#include "server/shard/content_checksum.h"

namespace lodestone::server {
namespace {

constexpr std::chrono::seconds kAnswerTimeout(60);  // Of a follower that is asked for a checksum.

v1::ShardPosition PositionOf(const Shard::State& state) {
  v1::ShardPosition position;
  position.set_shard(state.shard);
  position.set_term(state.term);
  position.set_version(state.version);
  return position;
}

// Whether who opens `stream` may follow; it ends once he may not any more. `access` may be null.
absl::Status CheckCaller(Access* access, const grpc::CallbackServerContext& context,
                         const std::shared_ptr<FollowStream>& stream) {
  if (access == nullptr) return absl::OkStatus();
  LODESTONE_ASSIGN_OR_RETURN(const std::shared_ptr<Caller> caller, access->Identify(CallOf(context)));
  // At the door he was an admin; he may not be one any more.
  LODESTONE_RETURN_IF_ERROR(caller->CheckRole(v1::Identity::ADMIN, "/lodestone.v1.Replication/Follow", "Follow"));
  access->Watch(caller, stream);
  return absl::OkStatus();
}

}  // namespace

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Replicator::Open(grpc::CallbackServerContext* context) {
  auto stream = std::make_shared<FollowStream>(this, context);
  absl::Status end = CheckCaller(options_.access, *context, stream);
  {
    MutexLock lock(&mu_);
    streams_.push_back(stream);
    if (shut_down_) end = absl::UnavailableError("the ps shuts down");
  }
  stream->Start(end);
  return stream.get();
}

absl::Status Replicator::OnStart(const std::shared_ptr<FollowStream>& stream, const v1::FollowStart& start) {
  const auto other = [](const char* what, const auto& there, const auto& here) {
    return absl::FailedPreconditionError(
        absl::StrCat("the follower is of another cluster: its ", what, " is ", there, ", and here it is ", here));
  };
  if (start.cluster() != options_.cluster) return other("cluster.name", start.cluster(), options_.cluster);
  if (start.shards() != options_.shards) return other("cluster.shards", start.shards(), options_.shards);
  if (start.seed() != options_.seed) return other("cluster.seed", start.seed(), options_.seed);
  if (start.owner() != options_.server) {
    return absl::UnavailableError(absl::StrCat("this is ps ", options_.server, ", not ps ", start.owner()));
  }
  if (stream->incarnation() != 0 || start.incarnation() == 0) {
    return absl::InvalidArgumentError("a stream starts once, with the follower's incarnation");
  }
  const std::vector<ShardId> owned = store_->shards().owned();  // None before this ps has brought them back.
  for (const v1::ShardPosition& position : start.follows()) {
    if (!std::binary_search(owned.begin(), owned.end(), position.shard())) {
      return absl::UnavailableError(
          absl::StrCat("shard ", position.shard(), " is not owned by ps ", options_.server, " (yet, or any more)"));
    }
  }
  stream->SetFollower(start.server(), start.incarnation());
  std::vector<std::unique_ptr<Bootstrap>> ended;
  MutexLock lock(&mu_);
  if (shut_down_) return absl::UnavailableError("the ps shuts down");
  for (auto& bootstrap : bootstraps_) {
    if (bootstrap->done.load()) ended.push_back(std::move(bootstrap));
  }
  std::erase(bootstraps_, nullptr);
  for (const auto& bootstrap : ended) bootstrap->thread.join();
  auto bootstrap = std::make_unique<Bootstrap>();
  bootstrap->thread = std::thread([this, stream, start, done = &bootstrap->done] {
    RunBootstrap(stream, start);
    done->store(true);
  });
  bootstraps_.push_back(std::move(bootstrap));
  return absl::OkStatus();
}

void Replicator::RunBootstrap(const std::shared_ptr<FollowStream>& stream, const v1::FollowStart& start) {
  v1::FollowItem item;
  const Sessions::Known known = store_->sessions().known();
  item.mutable_sessions()->mutable_open()->Add(known.open.begin(), known.open.end());
  item.mutable_sessions()->set_forgotten_max(known.forgotten_max);
  stream->Send(MakePiece(item));
  for (v1::TableSpec& spec : store_->tables().specs()) {
    *item.mutable_table() = std::move(spec);
    stream->Send(MakePiece(item));
  }
  size_t states = 0;
  for (const v1::ShardPosition& position : start.follows()) {
    std::optional<Shard::State> state;
    absl::Status status = Attach(stream, position, &state);
    if (status.ok() && state.has_value()) status = SendState(stream, *state);
    if (!status.ok()) return stream->End(std::move(status));
    states += state.has_value();
  }
  LODESTONE_LOG(INFO, "replication", "is followed by ps={} shards={} of_these_with_their_state={}", start.server(),
                start.follows_size(), states);
}

absl::Status Replicator::Attach(const std::shared_ptr<FollowStream>& stream, const v1::ShardPosition& position,
                                std::optional<Shard::State>* state) {
  for (;;) {
    absl::StatusOr<bool> attached;
    store_->shards().Run(position.shard(),
                         [&](Shard* shard) { attached = TryAttach(stream, position, *shard, state); });
    LODESTONE_RETURN_IF_ERROR(attached.status());
    if (*attached) return absl::OkStatus();
    MutexLock lock(&mu_);
    while (!shut_down_ && !stream->ended() && shards_[position.shard()].owned &&
           shards_[position.shard()].sync != Sync::kAlone) {
      changed_.WaitUntil(&mu_, std::chrono::steady_clock::now() + std::chrono::milliseconds(100));
    }
  }
}

absl::StatusOr<bool> Replicator::TryAttach(const std::shared_ptr<FollowStream>& stream,
                                           const v1::ShardPosition& position, const Shard& shard,
                                           std::optional<Shard::State>* state) {
  Telling telling;
  MutexLock lock(&mu_);
  OwnedShard& owned = shards_[shard.id()];
  if (shut_down_ || stream->ended()) return absl::UnavailableError("the stream has ended");
  if (!owned.owned) return absl::UnavailableError(absl::StrCat("shard ", shard.id(), " is no longer owned here"));
  owned.appended = std::max(owned.appended, shard.version());
  // What the follower has confirmed, and what came after it, is this ps's past.
  const bool known = owned.follower == stream->incarnation() && owned.confirmed > 0 &&
                     position.version() >= owned.confirmed && position.version() <= owned.appended;
  const bool resumes =
      known && (owned.unconfirmed.empty() ? position.version() == owned.appended
                                          : owned.unconfirmed.front()->version <= position.version() + 1);
  if (!resumes && owned.sync != Sync::kAlone) {
    if (owned.sync != Sync::kLeaving) Leave(&owned, "another copy begins");
    changed_.NotifyAll();
    return false;
  }
  if (owned.stream != nullptr && owned.stream != stream) {
    owned.stream->End(absl::UnavailableError("the follower has another stream now"));
  }
  owned.stream = stream;
  owned.lost_since_ms = 0;
  owned.sending_state = !resumes;
  changed_.NotifyAll();
  if (resumes) {
    // What it confirmed last may have been lost with the former stream, and nothing need follow.
    Confirm(&owned, position.version(), &telling);
    for (const FollowPieceRef& piece : owned.unconfirmed) {
      if (piece->version > position.version()) stream->Send(piece);
    }
    return true;
  }
  owned.server = stream->server();
  owned.follower = stream->incarnation();
  owned.confirmed = 0;
  DropUnconfirmed(&owned, UINT64_MAX);
  *state = shard.CollectState(nullptr);
  // All of it counts as this owner's: what the follower logged before, under a former one, may have been lost with it.
  (*state)->term = std::max((*state)->term, store_->shards().OwnTermOf(shard.id()));
  return true;
}

absl::Status Replicator::SendState(const std::shared_ptr<FollowStream>& stream, const Shard::State& state) {
  v1::FollowItem item;
  *item.mutable_state_begins() = PositionOf(state);
  stream->Send(MakePiece(item));
  const RecordVisitor send = [&](const v1::CheckpointRecord& record, std::span<const ByteView> payload) {
    *item.mutable_state() = record;
    std::vector<grpc::Slice> slices;
    for (const ByteView& view : payload) {
      if (!view.empty()) slices.emplace_back(view.contiguous(), view.size());
    }
    if (!stream->WaitForRoom()) return absl::UnavailableError("the stream has ended");
    stream->Send(MakePiece(item, std::move(slices)));
    return absl::OkStatus();
  };
  LODESTONE_RETURN_IF_ERROR(VisitState(state, send));
  *item.mutable_state_ends() = PositionOf(state);
  MutexLock lock(&mu_);
  OwnedShard& owned = shards_[state.shard];
  if (owned.stream != stream) return absl::UnavailableError("the follower has another stream now");
  stream->Send(MakePiece(item));
  for (const FollowPieceRef& piece : owned.unconfirmed) stream->Send(piece);
  owned.sending_state = false;
  return absl::OkStatus();
}

absl::StatusOr<v1::VerifyReplicasResponse> Replicator::Verify() {
  v1::VerifyReplicasResponse response;
  for (const ShardId shard : store_->shards().owned()) {
    *response.add_shards() = VerifyShard(shard);
    MutexLock lock(&mu_);
    if (shut_down_) return absl::UnavailableError("the ps shuts down");
  }
  return response;
}

v1::VerifyReplicasResponse::ShardReplicas Replicator::VerifyShard(ShardId shard) {
  v1::VerifyReplicasResponse::ShardReplicas result;
  result.set_shard(shard);
  std::optional<Shard::State> state;
  uint64_t id = 0;
  store_->shards().Run(shard, [&](Shard* owner) {
    MutexLock lock(&mu_);
    const OwnedShard& owned = shards_[shard];
    if (!owned.owned || owned.stream == nullptr || owned.sending_state) return;
    id = next_question_++;
    questions_[id].stream = owned.stream.get();
    result.set_follower(owned.server);
    v1::FollowItem item;
    item.mutable_checksum()->set_id(id);
    item.mutable_checksum()->set_shard(shard);
    owned.stream->Send(MakePiece(std::move(item)));  // After all updates up to the state's version.
    state = owner->CollectState(nullptr);
  });
  if (!state.has_value()) {
    result.set_missing("no follower has caught up with it");
    return result;
  }
  result.set_version(state->version);
  result.set_owner_checksum(ContentChecksum(*state));
  const auto deadline = std::chrono::steady_clock::now() + kAnswerTimeout;
  MutexLock lock(&mu_);
  const Question& question = questions_[id];
  while (!shut_down_ && !question.answer.has_value() && !question.lost) {
    if (changed_.WaitUntil(&mu_, deadline)) continue;
    if (std::chrono::steady_clock::now() >= deadline) break;
  }
  if (question.answer.has_value()) {
    result.set_follower_checksum(*question.answer);
  } else {
    result.set_missing(absl::StrCat("ps ", result.follower(), " did not answer"));
  }
  questions_.erase(id);
  return result;
}

}  // namespace lodestone::server
