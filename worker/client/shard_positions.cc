#include "worker/client/shard_positions.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace lodestone::worker {
namespace {

std::string ToString(const Position& position) {
  return absl::StrCat("version ", position.version, " of term ", position.term);
}

}  // namespace

absl::Status ShardPosition::CheckStart(const v1::Delta::ShardDelta& delta, const Position& to) const {
  if (delta.anchor()) return absl::OkStatus();
  if (!held_.has_value() || held_->version != delta.from_version()) {
    return absl::InternalError(absl::StrCat("a gap: the change starts from version ", delta.from_version(),
                                            ", held is ", held_.has_value() ? ToString(*held_) : "nothing"));
  }
  if (incoming_.has_value() && (incoming_->to.term != to.term || to < incoming_->to)) {
    return absl::InternalError(absl::StrCat("the change to ", ToString(to), " begins where an unfinished one to ",
                                            ToString(incoming_->to), " lies, which it may not undo"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ShardPosition::Piece> ShardPosition::Admit(uint64_t reader, const v1::Delta::ShardDelta& delta) {
  const Position to{delta.term(), delta.version()};
  const bool begun = incoming_.has_value() && incoming_->reader == reader;
  if (begun && incoming_->to == to) return Piece::kNext;
  const uint64_t term = incoming_.has_value() ? incoming_->to.term : held_.has_value() ? held_->term : 0;
  if (to.term < term) return Piece::kOutdated;
  absl::Status status;
  if (begun) {
    status = absl::InternalError(absl::StrCat("a change to ", ToString(to), " begins before the one to ",
                                              ToString(incoming_->to), " is complete"));
  } else {
    status = CheckStart(delta, to);
  }
  if (!status.ok()) {
    Forget();
    return status;
  }
  // What an anchor replaces is held no more: if it breaks off, only another one may follow.
  if (delta.anchor()) held_.reset();
  incoming_ = Incoming{reader, to};
  return Piece::kFirst;
}

void ShardPosition::Apply(const v1::Delta::ShardDelta& delta) {
  if (!delta.complete()) return;
  held_ = Position{delta.term(), delta.version()};
  incoming_.reset();
}

void ShardPosition::Forget() {
  held_.reset();
  incoming_.reset();
}

google::protobuf::RepeatedPtrField<v1::SubscribeRequest::Held> ShardPositions::Held() {
  google::protobuf::RepeatedPtrField<v1::SubscribeRequest::Held> held;
  for (ShardId shard = 0; shard < shards(); ++shard) {
    ShardPosition& position = shards_[shard];
    MutexLock lock(&position.mu);
    if (!position.held().has_value()) continue;
    v1::SubscribeRequest::Held* entry = held.Add();
    entry->set_shard(shard);
    entry->set_term(position.held()->term);
    entry->set_version(position.held()->version);
  }
  return held;
}

}  // namespace lodestone::worker
