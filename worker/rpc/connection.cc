#include "worker/rpc/connection.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/base/time_source.h"
#include "common/rpc/grpc_status.h"
#include "common/wire/ps_name.h"
#include "worker/rpc/connection_stream.h"

namespace lodestone::worker {
namespace {

constexpr char kMethod[] = "/lodestone.v1.ParameterServer/Exchange";

// A call may wait for its answer for so many times the time-out from when a younger one was answered.
constexpr int64_t kTimeoutsPerCallMax = 3;

// Reading and flow control: gRPC 1.51 tells the peer of a message's bytes that were taken, in a packet of its own that
// wakes it, when the next read starts. A write before that read carries it. So a message after which no answer is
// awaited is followed by a read only with the next write, and a small one by the next read only after its answers were
// run, which may have led to a write. A read that no write has started comes after a while, so that the end of the
// stream is heard of.
constexpr size_t kReadAfterAnswersBytesMax = 64 << 10;
constexpr int64_t kReadPostponedMs = 100;

// What a message has beside its calls: the payload's field number and length.
constexpr size_t kMessageHeadBytes = 16;

}  // namespace

Connection::Stream::Stream(Connection* owner)
    : owner_(owner),
      timer_(owner->timer_),
      time_(owner->time_),
      call_timeout_ms_(owner->call_timeout_ms_),
      codec_(owner->ps_, owner->shared_bytes_, owner->shared_refused_),
      outbox_(std::min(limits::kPackBytesTarget, owner->message_max_bytes_ - kMessageHeadBytes)) {}

void Connection::Stream::Open() {
  context_.AddMetadata(kMeantPsKey, owner_->ps_);
  stream_ = grpc::GenericStub(owner_->channel_).PrepareCall(&context_, kMethod, owner_->queue_);
  stream_->StartCall(started_.Begin(shared_from_this()));
}

void Connection::Stream::Cancel(const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    if (!fault_.has_value()) fault_ = status;
    context_.TryCancel();
  }
  ReadIfDue();  // The stream finishes when a read fails.
}

bool Connection::Stream::Send(v1::Call* call, const CallPayload& payload, bool may_share, Waiting* waiting) {
  // Copying and serializing take time.
  if (may_share) codec_.Share(payload, call, &waiting->encoding);
  const uint64_t id = ++last_id_;
  Frame frame = codec_.Encode(id, payload, call, &waiting->encoding);
  {
    MutexLock lock(&mu_);
    // What was shared is lost: it is the stream's.
    if (ending_ || fault_.has_value()) return false;
    waiting->queued_ms = time_->NowMs();
    if (waiting_.size() == subscriptions_) moved_ms_ = waiting->queued_ms;
    if (waiting->on_delta) ++subscriptions_;
    waiting_.emplace(id, std::move(*waiting));
    outbox_.Add(std::move(frame));
    WatchDeadline();
  }
  Pump();
  return true;
}

void Connection::Stream::Pump() {
  while (true) {
    grpc::ByteBuffer message;
    {
      MutexLock lock(&mu_);
      if (!open_ || ending_ || fault_.has_value() || writing_ || starting_write_) return;
      if (outbox_.empty() || Gathers()) return;
      writing_ = true;
      starting_write_ = true;
      message = outbox_.Pack(&written_tags_);
    }
    stream_->Write(message, written_.Begin(shared_from_this()));
    {
      MutexLock lock(&mu_);
      starting_write_ = false;
      if (ending_) Finish();
    }
    ReadIfDue();
  }
}

void Connection::Stream::Read() { stream_->Read(&incoming_, read_.Begin(shared_from_this())); }

void Connection::Stream::ReadIfDue() {
  {
    MutexLock lock(&mu_);
    if (!std::exchange(read_due_, false)) return;
  }
  Read();
}

void Connection::Stream::ReadOrPostpone() {
  {
    MutexLock lock(&mu_);
    read_due_ = waiting_.empty() && !fault_.has_value();
    if (read_due_ && read_timer_ == 0) {
      read_timer_ = timer_->After(kReadPostponedMs, [weak = weak_from_this()] {
        const auto stream = weak.lock();
        if (stream == nullptr) return;
        {
          MutexLock lock(&stream->mu_);
          stream->read_timer_ = 0;
        }
        stream->ReadIfDue();
      });
    }
    if (read_due_) return;
  }
  Read();
}

bool Connection::Stream::Gathers() const {
  return more_answers_ && 2 * outbox_.size() < waiting_.size() - subscriptions_ && !outbox_.full();
}

void Connection::Stream::Finish() {
  // After what was begun before: gRPC's end of the stream is the last that is heard of it.
  if (!starting_write_) stream_->Finish(&status_, finished_.Begin(shared_from_this()));
}

Connection::Stream::Waitings::iterator Connection::Stream::Oldest() {
  return std::find_if(waiting_.begin(), waiting_.end(), [](const auto& call) { return !call.second.on_delta; });
}

std::optional<int64_t> Connection::Stream::DeadlineMs() {
  const auto oldest = Oldest();
  if (oldest == waiting_.end()) return std::nullopt;
  const int64_t deadline_ms = moved_ms_ + call_timeout_ms_;
  const int64_t overtaken_ms = oldest->second.overtaken_ms;
  return overtaken_ms == 0 ? deadline_ms : std::min(deadline_ms, overtaken_ms + kTimeoutsPerCallMax * call_timeout_ms_);
}

void Connection::Stream::WatchDeadline() {
  if (deadline_timer_ != 0) return;
  const std::optional<int64_t> deadline_ms = DeadlineMs();
  if (!deadline_ms.has_value()) return;
  deadline_timer_ = timer_->After(std::max<int64_t>(1, *deadline_ms - time_->NowMs()), [weak = weak_from_this()] {
    if (const auto stream = weak.lock(); stream != nullptr) stream->CheckTime();
  });
}

void Connection::Stream::CheckTime() {
  {
    MutexLock lock(&mu_);
    if (deadline_timer_ != 0) timer_->Cancel(deadline_timer_);
    deadline_timer_ = 0;
    if (fault_.has_value()) return;
    const std::optional<int64_t> deadline_ms = DeadlineMs();
    if (!deadline_ms.has_value() || *deadline_ms > time_->NowMs()) return WatchDeadline();
    const bool still = moved_ms_ + call_timeout_ms_ <= time_->NowMs();
    fault_ =
        absl::DeadlineExceededError(still ? absl::StrCat("no answer within ", call_timeout_ms_, " ms")
                                          : absl::StrCat("no answer within ", kTimeoutsPerCallMax * call_timeout_ms_,
                                                         " ms, though younger calls were answered"));
    context_.TryCancel();
  }
  ReadIfDue();
}

void Connection::Stream::OnStarted(bool ok) {
  {
    MutexLock lock(&mu_);
    if (!ok) {
      ending_ = true;
      return Finish();
    }
    open_ = true;
    moved_ms_ = time_->NowMs();
  }
  Read();  // The stream finishes when a read fails, so not before this one.
  Pump();
}

void Connection::Stream::OnWritten(bool ok) {
  if (!ok) return ReadIfDue();  // The read under way, or this one, fails too.
  {
    MutexLock lock(&mu_);
    writing_ = false;
    moved_ms_ = time_->NowMs();
  }
  Pump();
}

void Connection::Stream::OnRead(bool ok) {
  if (!ok) {
    MutexLock lock(&mu_);
    ending_ = true;
    return Finish();
  }
  const grpc::ByteBuffer message = std::exchange(incoming_, {});
  bool reads_later = message.Length() <= kReadAfterAnswersBytesMax;
  {
    MutexLock lock(&mu_);
    moved_ms_ = time_->NowMs();
    reads_later |= waiting_.size() == 1 && subscriptions_ == 0;  // It has the only answer that is awaited.
  }
  if (!reads_later) Read();
  const absl::Status status = RunAnswers(message);
  if (!status.ok()) Cancel(status);
  Pump();
  if (reads_later) ReadOrPostpone();
}

absl::Status Connection::Stream::RunAnswers(const grpc::ByteBuffer& message) {
  v1::ExchangeResponse header;
  Payload payload;
  if (absl::Status status = ParseMessage(message, &header, &payload); !status.ok()) {
    return absl::InternalError(absl::StrCat("the answer is malformed: ", status.message()));
  }
  const int count = header.answers_size();
  for (int i = 0; i < count; ++i) {
    v1::Answer& answer = *header.mutable_answers(i);
    const uint64_t bytes = answer.payload_bytes();
    if (bytes > payload.size()) {
      return absl::InternalError(
          absl::StrCat("an answer of ", bytes, " bytes in a payload that has ", payload.size(), " left"));
    }
    LODESTONE_RETURN_IF_ERROR(RunAnswer(std::move(answer), payload.Take(bytes), i + 1 < count));
  }
  if (payload.size() == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(payload.size(), " bytes of the payload belong to no answer"));
}

absl::Status Connection::Stream::RunAnswer(v1::Answer answer, Payload payload, bool more) {
  Waiting waiting;
  {
    MutexLock lock(&mu_);
    more_answers_ = more;
    const auto found = waiting_.find(answer.id());
    if (found == waiting_.end()) return absl::InternalError(absl::StrCat("an answer to no call: id ", answer.id()));
    if (answer.code() == 0 && answer.has_delta()) {
      if (!found->second.on_delta) return absl::InternalError("a delta for a call that is no subscription");
      waiting.on_delta = found->second.on_delta;
    } else {
      waiting = std::move(found->second);
      waiting_.erase(found);
      if (waiting.on_delta) --subscriptions_;
      const auto oldest = Oldest();
      const bool overtakes = oldest != waiting_.end() && oldest->first < answer.id();
      if (overtakes && oldest->second.overtaken_ms == 0) oldest->second.overtaken_ms = moved_ms_;
    }
  }
  codec_.Learn(answer, waiting.encoding);
  if (!waiting.done) return waiting.on_delta(answer.delta(), payload);
  auto taken = codec_.Decode(answer, std::move(payload), &waiting.encoding);
  if (!taken.ok()) {
    waiting.done(taken.status());
    return taken.status();
  }
  if (answer.code() != 0) {
    waiting.done(FrameCodec::StatusOf(answer, waiting.encoding));
  } else {
    waiting.done(Answer{std::move(answer), *std::move(taken)});
  }
  return absl::OkStatus();
}

void Connection::Stream::OnFinished(bool) {
  absl::Status status = FromCall(status_);
  Waitings failed;
  {
    MutexLock lock(&mu_);
    if (fault_.has_value()) status = *fault_;
    failed.swap(waiting_);
    outbox_.Clear();
    if (deadline_timer_ != 0) timer_->Cancel(deadline_timer_);
    if (read_timer_ != 0) timer_->Cancel(read_timer_);
  }
  if (status.ok()) status = absl::UnavailableError("the ps ended the stream");
  const int64_t now_ms = time_->NowMs();
  for (const auto& [id, waiting] : failed) {
    const bool too_young = absl::IsDeadlineExceeded(status) && waiting.queued_ms + call_timeout_ms_ > now_ms;
    waiting.done(too_young ? absl::UnavailableError(absl::StrCat("another call got ", status.message())) : status);
  }
  failed.clear();  // What the callbacks hold goes before the connection may.
  MutexLock lock(&owner_->mu_);
  if (owner_->stream_.get() == this) owner_->stream_.reset();
  --owner_->live_;
  owner_->ended_.NotifyAll();
}

void Connection::Start(v1::Call* call, const CallPayload& payload, Waiting waiting) {
  const size_t bytes = FrameCodec::BytesMax(payload, call) + 2 * kMessageHeadBytes;
  if (bytes > message_max_bytes_) {
    return waiting.done(absl::InvalidArgumentError(
        absl::StrCat("the call takes ", bytes, " bytes, and server.message_max_bytes is ", message_max_bytes_)));
  }
  std::shared_ptr<Stream> stream;
  while (true) {
    bool opened = false;
    {
      MutexLock lock(&mu_);
      if (closed_) break;
      if (stream_ == nullptr || stream_ == stream) {  // There is none, or the one that was tried is over.
        stream_ = std::make_shared<Stream>(this);
        ++live_;
        opened = true;
      }
      stream = stream_;
    }
    if (opened) stream->Open();
    if (stream->Send(call, payload, bytes + FrameCodec::kSharedHeaderBytesMax <= message_max_bytes_, &waiting)) return;
  }
  waiting.done(absl::CancelledError("the client is closing"));
}

void Connection::Send(v1::Call* call, const CallPayload& payload, Done done) {
  Start(call, payload, {.done = std::move(done), .on_delta = nullptr});
}

void Connection::Subscribe(v1::Call* call, OnDelta on_delta, Done done) {
  Start(call, {}, {.done = std::move(done), .on_delta = std::move(on_delta)});
}

void Connection::CheckTime() {
  if (const std::shared_ptr<Stream> stream = newest(); stream != nullptr) stream->CheckTime();
}

void Connection::Reset(const absl::Status& status) {
  if (const std::shared_ptr<Stream> stream = newest(); stream != nullptr) stream->Cancel(status);
}

void Connection::Close() {
  std::shared_ptr<Stream> stream;
  {
    MutexLock lock(&mu_);
    closed_ = true;
    stream = stream_;
  }
  if (stream != nullptr) stream->Cancel(absl::CancelledError("the client is closing"));
  MutexLock lock(&mu_);
  while (live_ > 0) ended_.Wait(&mu_);
}

ConnectionThread::ConnectionThread() : thread_([this] { RunCompletions(&queue_); }) {}

ConnectionThread::~ConnectionThread() {
  queue_.Shutdown();
  thread_.join();
}

}  // namespace lodestone::worker
