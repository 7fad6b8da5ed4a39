#include "server/replication/follow_streams.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/rpc/grpc_status.h"
#include "common/telemetry/log.h"
#include "common/telemetry/metrics.h"
#include "server/auth/authorized_caller.h"
#include "server/optimizer/arithmetic.h"
#include "server/store/store.h"

namespace lodestone::server {
namespace {

constexpr size_t kMachineBytesMax = 128;

CounterMetric unlike_metric("lodestone_ps_replication_unlike_followers_total",
                            "Streams of followers whose arithmetic gives other bits than that of this ps.");

// Whether the caller that opens `stream` may follow; the stream ends once it may not any more. `access` may be null.
absl::Status CheckCaller(Access* access, const grpc::CallbackServerContext& context,
                         const std::shared_ptr<FollowStream>& stream) {
  if (access == nullptr) return absl::OkStatus();
  LODESTONE_ASSIGN_OR_RETURN(const std::shared_ptr<Caller> caller, access->Identify(CallOf(context)));
  // It was an admin when the call was let in, and may not be one any more.
  LODESTONE_RETURN_IF_ERROR(caller->CheckRole(v1::Identity::ADMIN, "/lodestone.v1.Replication/Follow", "Follow"));
  access->Watch(caller, stream);
  return absl::OkStatus();
}

absl::Status NoMore() { return absl::UnavailableError("the ps shuts down"); }

// The follower's copies may differ from their owner's in last bits.
void NoteUnlike(const v1::FollowStart& start) {
  unlike_metric.Add(1);
  LODESTONE_LOG(WARN, "replication",
                "ps {} computes other bits than this ps, which it follows: copies may differ in last bits; run both on "
                "like machines and libraries, and see `psctl verify --live` there={} here={}",
                start.server(), std::string(Utf8Prefix(start.machine(), kMachineBytesMax)), ArithmeticName());
}

// gRPC's end of a stream. Owned by gRPC until OnDone.
class GrpcWire final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>, public FollowStream::Wire {
 public:
  explicit GrpcWire(grpc::CallbackServerContext* context) : context_(context) {}
  void SetStream(std::shared_ptr<FollowStream> stream) { stream_ = std::move(stream); }

  void StartRead(grpc::ByteBuffer* message) override { ServerBidiReactor::StartRead(message); }
  void StartWrite(const grpc::ByteBuffer* message) override { ServerBidiReactor::StartWrite(message); }
  void Finish(const absl::Status& status) override { ServerBidiReactor::Finish(ToGrpc(status)); }
  void TryCancel() override { context_->TryCancel(); }

  void OnReadDone(bool ok) override { stream_->OnReadDone(ok); }
  void OnWriteDone(bool ok) override { stream_->OnWriteDone(ok); }
  void OnCancel() override { stream_->OnCancel(); }
  void OnDone() override {
    stream_->OnDone();
    delete this;
  }

 private:
  grpc::CallbackServerContext* const context_;
  std::shared_ptr<FollowStream> stream_;  // Set before anything is started.
};

}  // namespace

void FollowStreams::Join() {
  std::vector<std::unique_ptr<Bootstrap>> bootstraps;  // They end without the lock, which they may wait for.
  MutexLock lock(&mu_);
  bootstraps.swap(bootstraps_);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* FollowStreams::Open(grpc::CallbackServerContext* context) {
  auto* const wire = new GrpcWire(context);
  const auto stream = std::make_shared<FollowStream>(replicator_, wire);
  wire->SetStream(stream);
  Begin(stream, CheckCaller(options_.access, *context, stream));
  return wire;
}

std::shared_ptr<FollowStream> FollowStreams::Open(FollowStream::Wire* wire) {
  auto stream = std::make_shared<FollowStream>(replicator_, wire);
  Begin(stream, absl::OkStatus());
  return stream;
}

void FollowStreams::Begin(const std::shared_ptr<FollowStream>& stream, absl::Status end) {
  {
    MutexLock lock(&mu_);
    streams_.push_back(stream);
    if (shut_down_) end = NoMore();
  }
  stream->Start(end);
}

absl::Status FollowStreams::CheckStart(const FollowStream& stream, const v1::FollowStart& start) const {
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
  if (stream.incarnation() != 0 || start.incarnation() == 0) {
    return absl::InvalidArgumentError("a stream starts once, with the follower's incarnation");
  }
  for (const v1::ShardPosition& position : start.follows()) {
    // One that is to be given up is its follower's to catch up with.
    if (!store_->shards().IsOwner(position.shard())) {
      return absl::UnavailableError(
          absl::StrCat("shard ", position.shard(), " is not owned by ps ", options_.server, " (yet, or any more)"));
    }
  }
  return absl::OkStatus();
}

absl::Status FollowStreams::OnStart(const std::shared_ptr<FollowStream>& stream, const v1::FollowStart& start) {
  LODESTONE_RETURN_IF_ERROR(CheckStart(*stream, start));
  if (start.arithmetic() != 0 && start.arithmetic() != ArithmeticFingerprint()) NoteUnlike(start);
  stream->SetFollower(start.server(), start.incarnation());
  MutexLock lock(&mu_);
  if (shut_down_) return NoMore();
  std::erase_if(bootstraps_, [](const auto& bootstrap) { return bootstrap->done(); });
  bootstraps_.push_back(std::make_unique<Bootstrap>(options_.sources, stream, start));
  return absl::OkStatus();
}

void FollowStreams::OnClosed(const FollowStream* stream) {
  MutexLock lock(&mu_);
  std::erase_if(streams_, [stream](const auto& one) { return one.get() == stream; });
}

bool FollowStreams::empty() const {
  MutexLock lock(&mu_);
  return streams_.empty();
}

std::vector<std::shared_ptr<FollowStream>> FollowStreams::streams() const {
  MutexLock lock(&mu_);
  return streams_;
}

void FollowStreams::Queue(const FollowPieceRef& piece, QueuedSends* sends) const {
  for (const auto& stream : streams()) {
    if (stream->incarnation() != 0) sends->Queue(stream, piece);
  }
}

void FollowStreams::EndDropped(uint32_t server, ShardId shard) const {
  for (const auto& stream : streams()) {
    if (stream->server() != server || !stream->HasDropped(shard)) continue;
    stream->End(absl::UnavailableError(absl::StrCat("ps ", server, " is to follow shard ", shard, " again")));
  }
}

void FollowStreams::EndSilent(int64_t silent_ms_max) {
  for (const auto& stream : streams()) {
    if (stream->SilentMs() <= silent_ms_max) continue;
    stream->End(absl::DeadlineExceededError("the stream did not start in time"), /*now=*/true);
  }
}

void FollowStreams::Shutdown() {
  {
    MutexLock lock(&mu_);
    shut_down_ = true;
  }
  for (const auto& stream : streams()) stream->End(NoMore());
}

}  // namespace lodestone::server
