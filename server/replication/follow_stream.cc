#include "server/replication/follow_stream.h"

#include <utility>

#include "common/base/limits.h"
#include "common/telemetry/metrics.h"
#include "common/wire/message.h"
#include "server/replication/replicator.h"

namespace lodestone::server {
namespace {

CounterMetric sent_metric("lodestone_ps_replication_sent_bytes_total", "Bytes sent to followers: states and updates.");

}  // namespace

void FollowStream::Start(const absl::Status& end) {
  self_ = shared_from_this();
  MutexLock lock(&mu_);
  if (!end.ok()) end_ = end;
  Pump();
}

void FollowStream::End(absl::Status status, bool now) {
  MutexLock lock(&mu_);
  if (now && writing_ && !finishing_) wire_->TryCancel();
  if (end_.has_value()) return;
  end_ = std::move(status);
  queue_.clear();
  queue_bytes_ = 0;
  changed_.NotifyAll();
  Pump();
}

void FollowStream::Queue(FollowPieceRef piece) {
  MutexLock lock(&mu_);
  if (end_.has_value()) return;
  queue_bytes_ += piece->bytes;
  queue_.push_back(std::move(piece));
}

void FollowStream::Flush() {
  {
    MutexLock lock(&mu_);
    if (writing_ || finishing_ || queue_.empty()) return;
    Pack();
    writing_ = true;  // The stream does not end before the write has.
    writing_since_ms_ = time_.NowMs();
  }
  wire_->StartWrite(&outgoing_);
}

bool FollowStream::WaitForRoom(int64_t stalled_ms_max) {
  for (;;) {
    {
      MutexLock lock(&mu_);
      if (end_.has_value()) return false;
      if (queue_bytes_ <= limits::kFollowBytesAhead) return true;
      changed_.WaitForMs(&mu_, stalled_ms_max);
      if (!writing_ || time_.NowMs() - writing_since_ms_ <= stalled_ms_max) continue;
    }
    End(absl::DeadlineExceededError("the follower takes nothing"), /*now=*/true);
  }
}

uint64_t FollowStream::waiting_bytes() const {
  MutexLock lock(&mu_);
  return queue_bytes_;
}

uint64_t FollowStream::sent_bytes() const {
  MutexLock lock(&mu_);
  return sent_bytes_;
}

int64_t FollowStream::WritingMs() const {
  MutexLock lock(&mu_);
  return writing_ ? time_.NowMs() - writing_since_ms_ : 0;
}

int64_t FollowStream::SilentMs() const {
  MutexLock lock(&mu_);
  return incarnation_ == 0 ? time_.NowMs() - opened_ms_ : 0;
}

bool FollowStream::ended() const {
  MutexLock lock(&mu_);
  return end_.has_value();
}

void FollowStream::SetFollower(uint32_t server, Incarnation incarnation) {
  MutexLock lock(&mu_);
  server_ = server;
  incarnation_ = incarnation;
}

void FollowStream::Drop(ShardId shard) {
  MutexLock lock(&mu_);
  dropped_.insert(shard);
}

bool FollowStream::HasDropped(ShardId shard) const {
  MutexLock lock(&mu_);
  return dropped_.contains(shard);
}

uint32_t FollowStream::server() const {
  MutexLock lock(&mu_);
  return server_;
}

Incarnation FollowStream::incarnation() const {
  MutexLock lock(&mu_);
  return incarnation_;
}

void FollowStream::Pump() {
  if (finishing_) return;
  if (!reading_ && !end_.has_value()) {
    reading_ = true;
    wire_->StartRead(&incoming_);
  }
  if (end_.has_value() && !writing_) {
    finishing_ = true;
    wire_->Finish(*end_);
  }
}

// Many small updates are one message: what came while the one before was being written.
void FollowStream::Pack() {
  v1::FollowResponse header;
  std::vector<grpc::Slice> payload;
  uint64_t bytes = 0;
  while (!queue_.empty() && (bytes == 0 || bytes + queue_.front()->bytes <= limits::kFollowBytesTarget)) {
    const FollowPiece& piece = *queue_.front();
    *header.add_items() = piece.item;
    payload.insert(payload.end(), piece.payload.begin(), piece.payload.end());
    bytes += piece.bytes;
    queue_.pop_front();
  }
  queue_bytes_ -= bytes;
  sent_bytes_ += bytes;
  sent_metric.Add(bytes);
  outgoing_ = BuildMessage(header, payload);
  changed_.NotifyAll();
}

void FollowStream::OnReadDone(bool ok) {
  if (!ok) {
    End(absl::UnavailableError("the follower is gone"));
    return;
  }
  const grpc::ByteBuffer message = std::exchange(incoming_, {});
  v1::FollowRequest request;
  Payload payload;
  absl::Status status = ParseMessage(message, &request, &payload);
  if (status.ok() && request.has_start()) {
    status = replicator_->OnStart(shared_from_this(), request.start());
  } else if (status.ok()) {
    status = replicator_->OnAcks(this, request.acks());
  }
  if (!status.ok()) End(std::move(status));
  MutexLock lock(&mu_);
  reading_ = false;
  Pump();
}

void FollowStream::OnWriteDone(bool ok) {
  {
    MutexLock lock(&mu_);
    writing_ = false;
    outgoing_.Clear();
    if (ok) Pump();
  }
  if (ok) return Flush();
  End(absl::UnavailableError("the follower is gone"));
  MutexLock lock(&mu_);
  Pump();
}

void FollowStream::OnCancel() { End(absl::CancelledError("the follower is gone")); }

void FollowStream::OnDone() {
  replicator_->OnClosed(this);
  self_.reset();
}

}  // namespace lodestone::server
