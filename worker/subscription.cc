#include "worker/subscription.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "common/log.h"
#include "common/status.h"
#include "common/time_source.h"
#include "common/wire.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/client_callback.h"
#include "proto/parameter_server.pb.h"

namespace lodestone {
namespace {

constexpr char kMethod[] = "/lodestone.v1.ParameterServer/Subscribe";

// A loss is logged at once, and then at most this often.
constexpr int64_t kLogEveryMs = 3'000;

// Whether a stream that ended like this is of no use to open again.
bool IsFinal(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kUnimplemented:
      return true;
    default:
      return false;
  }
}

}  // namespace

// One stream. On the wire a stream of answers is a bidirectional one whose asker has said all with its first message;
// as such gRPC gives its bytes untouched.
class Subscription::Stream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Stream(Subscription* owner, grpc::ByteBuffer request)
      : owner_(owner),
        request_(std::move(request)),
        deltas_(&owner->tables_, owner->options_.shards, &owner->options_.listener) {}

  void Start() {
    grpc::GenericStub(owner_->options_.channel).PrepareBidiStreamingCall(&context_, kMethod, grpc::StubOptions(), this);
    StartWriteLast(&request_, grpc::WriteOptions());
    StartRead(&answer_);
    StartCall();
  }

  void Cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    v1::Delta header;
    Payload payload;
    fault_ = ParseMessage(answer_, &header, &payload);
    if (fault_.ok()) fault_ = deltas_.Read(header, payload);
    if (fault_.ok()) {
      answer_.Clear();
      StartRead(&answer_);
    } else {
      fault_ = absl::InternalError(fault_.message());
      context_.TryCancel();
    }
  }

  void OnDone(const grpc::Status& status) override {
    absl::Status ended = fault_.ok() ? FromGrpc(status) : fault_;
    if (ended.ok()) ended = absl::UnavailableError("the ps ended the stream");
    owner_->OnStreamEnd(ended);  // Destroys this.
  }

 private:
  Subscription* const owner_;
  const grpc::ByteBuffer request_;
  grpc::ClientContext context_;
  grpc::ByteBuffer answer_;
  DeltaReader deltas_;
  absl::Status fault_;  // What was wrong with what came.
};

Subscription::Subscription(Options options) : options_(std::move(options)), backoff_(options_.seed) {
  for (const TableHandle* table : options_.tables) tables_.emplace(table->id, table);
  Start();
}

Subscription::~Subscription() {
  MutexLock lock(&mu_);
  stopping_ = true;
  if (stream_ != nullptr) stream_->Cancel();
  if (pause_ != 0 && options_.timer->Cancel(pause_)) pause_ = 0;
  while (stream_ != nullptr || pause_ != 0) stopped_.Wait(&mu_);
}

void Subscription::Start() {
  v1::SubscribeRequest request;
  request.set_worker_incarnation(options_.incarnation);
  for (const TableHandle* table : options_.tables) request.add_tables()->set_table(table->id);
  MutexLock lock(&mu_);
  pause_ = 0;
  if (stopping_) {
    stopped_.NotifyAll();
    return;
  }
  stream_started_ms_ = SteadyTime().NowMs();
  stream_ = std::make_unique<Stream>(this, BuildMessage(request, {}));
  stream_->Start();
}

void Subscription::OnStreamEnd(const absl::Status& status) {
  const absl::Status named = Annotate(status, absl::StrCat("subscription at ", options_.peer));
  bool final = false;
  {
    MutexLock lock(&mu_);
    final = !stopping_ && IsFinal(status);
  }
  if (final) options_.on_lost(named);  // Before the stream counts as gone, so that the destructor waits for it.

  MutexLock lock(&mu_);
  const int64_t now_ms = SteadyTime().NowMs();
  if (!stopping_ && !final) {
    if (now_ms - stream_started_ms_ > limits::kRetryBackoffMaxMs) backoff_.Reset();
    if (logged_ms_ == 0 || now_ms - logged_ms_ >= kLogEveryMs) {
      logged_ms_ = now_ms;
      LODESTONE_LOG(WARN, "client", "subscription is renewed reason={}", named.ToString());
    }
    pause_ = options_.timer->After(backoff_.NextMs(), [this] { Start(); });
  }
  stream_.reset();
  if (stopping_ || final) stopped_.NotifyAll();
}

}  // namespace lodestone
