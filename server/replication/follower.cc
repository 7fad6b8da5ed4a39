#include "server/replication/follower.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/channel.h"
#include "common/log.h"
#include "common/mutex.h"
#include "common/retry.h"
#include "common/status.h"
#include "common/time_source.h"
#include "common/wire.h"
#include "grpcpp/client_context.h"
#include "grpcpp/impl/codegen/rpc_method.h"
#include "grpcpp/support/sync_stream.h"
#include "proto/replication.pb.h"
#include "server/shard/content_checksum.h"

namespace lodestone {
namespace {

constexpr int64_t kLogEveryMs = 3'000;  // A link that stays broken is spoken of this often.
constexpr char kMethod[] = "/lodestone.v1.Replication/Follow";

using Stream = grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

std::unique_ptr<Stream> OpenStream(grpc::Channel* channel, const std::shared_ptr<grpc::Channel>& owned,
                                   grpc::ClientContext* context) {
  const grpc::internal::RpcMethod method(kMethod, grpc::internal::RpcMethod::BIDI_STREAMING, owned);
  return std::unique_ptr<Stream>(
      grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(channel, method, context));
}

// Bytes of `view`, which are in `*copy` if they do not lie together.
std::span<const uint8_t> Together(const ByteView& view, std::vector<uint8_t>* copy) {
  if (view.contiguous() != nullptr || view.empty()) return {view.contiguous(), view.size()};
  copy->resize(view.size());
  view.CopyTo(copy->data());
  return *copy;
}

}  // namespace

// What this ps follows of one owner.
class Follower::Link {
 public:
  Link(const Options& options, Store* store, uint32_t owner, std::string address, Incarnation owner_incarnation,
       std::vector<ShardId> shards)
      : options_(options),
        store_(store),
        owner_(owner),
        address_(std::move(address)),
        owner_incarnation_(owner_incarnation),
        shards_(std::move(shards)),
        channel_(MakeChannel(address_, std::numeric_limits<int32_t>::max())),  // A block with its state may be longer than
                                                                               // any message of a worker.
        incarnation_(options.incarnation()),
        thread_([this] { Run(); }) {}
  ~Link() { Stop(); }

  bool Is(const std::string& address, Incarnation incarnation, const std::vector<ShardId>& shards) const {
    return address_ == address && owner_incarnation_ == incarnation && shards_ == shards &&
           incarnation_ == options_.incarnation();
  }
  void Stop() {
    {
      MutexLock lock(&mu_);
      if (stopping_) return;
      stopping_ = true;
      if (context_ != nullptr) context_->TryCancel();
      changed_.NotifyAll();
    }
    thread_.join();
  }
  void FillStatus(v1::StatusResponse* status) const;

 private:
  void Run();
  // Until the stream ends, and why.
  absl::Status RunStream();
  absl::Status TakeMessage(const grpc::ByteBuffer& message, v1::FollowAcks* acks);
  absl::Status TakeItem(const v1::FollowItem& item, const Payload& payload, v1::FollowAcks* acks);
  absl::Status TakeRecord(const v1::LogRecord& record, const Payload& payload);
  absl::Status CheckFollowed(ShardId shard) const;
  v1::ShardPosition PositionOf(ShardId shard) const;
  bool Pause(int64_t ms);

  const Options& options_;
  Store* const store_;
  const uint32_t owner_;
  const std::string address_;
  const Incarnation owner_incarnation_;
  const std::vector<ShardId> shards_;  // Ascending.
  const std::shared_ptr<grpc::Channel> channel_;
  const Incarnation incarnation_;  // Of this ps.
  const SteadyTime time_;

  // Owned by the thread.
  std::vector<uint8_t> copy_;
  std::vector<ShardId> touched_;     // By the message that is being taken.
  std::optional<ShardId> state_of_;  // Whose state is coming.

  mutable Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mu_) = nullptr;  // Of the stream that is open.
  std::string broken_ ABSL_GUARDED_BY(mu_) = "it has not answered yet";
  int64_t broken_since_ms_ ABSL_GUARDED_BY(mu_) = time_.NowMs();

  std::thread thread_;  // Last: it uses all of the above.
};

void Follower::Link::Run() {
  Backoff backoff(owner_incarnation_ ^ options_.server);
  int64_t logged_ms = 0;
  for (;;) {
    const int64_t start_ms = time_.NowMs();
    const absl::Status status = RunStream();
    const int64_t now_ms = time_.NowMs();
    {
      MutexLock lock(&mu_);
      if (stopping_) return;
      if (broken_.empty()) broken_since_ms_ = now_ms;
      broken_ = status.ToString();
    }
    if (logged_ms == 0 || now_ms - logged_ms >= kLogEveryMs || absl::IsDataLoss(status)) {
      logged_ms = now_ms;
      LODESTONE_LOG(WARN, "replication", "does not hear from the owner ps={} address={} shards={} reason={}", owner_,
                    address_, shards_.size(), status.ToString());
    }
    if (now_ms - start_ms > 1000) backoff.Reset();
    options_.ask_route();
    Reconnect(channel_.get());
    if (!Pause(std::min<int64_t>(backoff.NextMs(), 500))) return;
  }
}

bool Follower::Link::Pause(int64_t ms) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
  MutexLock lock(&mu_);
  while (!stopping_ && changed_.WaitUntil(&mu_, until)) {
  }
  return !stopping_;
}

absl::Status Follower::Link::RunStream() {
  grpc::ClientContext context;
  {
    MutexLock lock(&mu_);
    if (stopping_) return absl::CancelledError("the ps ends");
    context_ = &context;
  }
  state_of_.reset();
  const std::unique_ptr<Stream> stream = OpenStream(channel_.get(), channel_, &context);
  v1::FollowRequest request;
  v1::FollowStart& start = *request.mutable_start();
  start.set_cluster(options_.cluster);
  start.set_shards(options_.shards);
  start.set_seed(options_.seed);
  start.set_server(options_.server);
  start.set_incarnation(incarnation_);
  start.set_owner(owner_);
  for (const ShardId shard : shards_) *start.add_follows() = PositionOf(shard);
  absl::Status status;
  bool open = stream->Write(BuildMessage(request, {}));
  grpc::ByteBuffer message;
  // To the end, also when nothing can be confirmed any more: Finish waits for ever while there is something to read.
  while (status.ok() && stream->Read(&message)) {
    {
      MutexLock lock(&mu_);
      broken_.clear();
    }
    v1::FollowRequest answer;
    status = TakeMessage(message, answer.mutable_acks());
    const bool any = answer.acks().applied_size() + answer.acks().checksums_size() > 0;
    if (status.ok() && any && open) open = stream->Write(BuildMessage(answer, {}));
  }
  if (!status.ok()) context.TryCancel();
  const absl::Status ended = FromCall(stream->Finish());
  MutexLock lock(&mu_);
  context_ = nullptr;
  if (!status.ok()) return status;
  return ended.ok() ? absl::UnavailableError("the owner ended the stream") : ended;
}

v1::ShardPosition Follower::Link::PositionOf(ShardId shard) const {
  v1::ShardPosition position;
  position.set_shard(shard);
  if (store_->RoleOf(shard) != ShardRole::kFollows) return position;
  store_->UseShard(shard, [&position](Shard* followed) {
    position.set_term(followed->term());
    position.set_version(followed->version());
  });
  return position;
}

absl::Status Follower::Link::CheckFollowed(ShardId shard) const {
  if (std::binary_search(shards_.begin(), shards_.end(), shard)) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("ps ", owner_, " sends shard ", shard, ", which was not asked for"));
}

absl::Status Follower::Link::TakeMessage(const grpc::ByteBuffer& message, v1::FollowAcks* acks) {
  v1::FollowResponse header;
  Payload payload;
  LODESTONE_RETURN_IF_ERROR(ParseMessage(message, &header, &payload));
  touched_.clear();
  for (const v1::FollowItem& item : header.items()) {
    if (item.payload_bytes() > payload.size()) {
      return absl::InternalError("the payload of a message is shorter than its items say");
    }
    LODESTONE_RETURN_IF_ERROR(TakeItem(item, payload.Take(item.payload_bytes()), acks));
  }
  std::sort(touched_.begin(), touched_.end());
  touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
  for (const ShardId shard : touched_) *acks->add_applied() = PositionOf(shard);
  return absl::OkStatus();
}

absl::Status Follower::Link::TakeItem(const v1::FollowItem& item, const Payload& payload, v1::FollowAcks* acks) {
  switch (item.what_case()) {
    case v1::FollowItem::kRecord:
      return TakeRecord(item.record(), payload);
    case v1::FollowItem::kStateBegins:
      LODESTONE_RETURN_IF_ERROR(CheckFollowed(item.state_begins().shard()));
      store_->ClearState(item.state_begins().shard());
      state_of_ = item.state_begins().shard();
      return absl::OkStatus();
    case v1::FollowItem::kState:
      if (!state_of_.has_value()) return absl::InternalError("a piece of a state that has not begun");
      return store_->TakeState(*state_of_, item.state(), Together(payload.bytes(), &copy_));
    case v1::FollowItem::kStateEnds: {
      const v1::ShardPosition& end = item.state_ends();
      if (state_of_ != end.shard()) return absl::InternalError("the state of a shard ends that has not begun");
      state_of_.reset();
      LODESTONE_RETURN_IF_ERROR(store_->FinishState(end.shard(), end.version(), end.term()));
      if (options_.on_state) options_.on_state(end.shard());
      touched_.push_back(end.shard());
      return absl::OkStatus();
    }
    case v1::FollowItem::kSessions: {
      const std::vector<Incarnation> open(item.sessions().open().begin(), item.sessions().open().end());
      store_->KnowSessions(open, item.sessions().forgotten_max());
      return absl::OkStatus();
    }
    case v1::FollowItem::kTable: {
      v1::LogRecord record;
      *record.mutable_table() = item.table();
      return store_->ReplayFollowed(record, Payload());
    }
    case v1::FollowItem::kChecksum: {
      LODESTONE_RETURN_IF_ERROR(CheckFollowed(item.checksum().shard()));
      Shard::State state;
      store_->UseShard(item.checksum().shard(), [&state](Shard* shard) { state = shard->CollectState(nullptr); });
      v1::FollowAcks::Checksum* const answer = acks->add_checksums();
      answer->set_id(item.checksum().id());
      answer->set_shard(state.shard);
      answer->set_version(state.version);
      answer->set_checksum(ContentChecksum(state));
      return absl::OkStatus();
    }
    case v1::FollowItem::WHAT_NOT_SET:
      break;
  }
  return absl::UnimplementedError("the owner sends what this program does not know");
}

absl::Status Follower::Link::TakeRecord(const v1::LogRecord& record, const Payload& payload) {
  if (record.has_session_forgotten()) {
    for (const ShardId shard : shards_) {
      store_->UseShard(shard, [&](Shard* followed) { followed->ForgetWorker(record.session_forgotten()); });
    }
    return absl::OkStatus();
  }
  if (record.version() == 0) return store_->ReplayFollowed(record, payload);
  LODESTONE_RETURN_IF_ERROR(CheckFollowed(record.shard()));
  touched_.push_back(record.shard());
  absl::Status status = store_->ReplayFollowed(record, payload);
  // Whatever went wrong with its content: the next stream brings all of it anew.
  if (!status.ok() && !absl::IsUnavailable(status) && !absl::IsResourceExhausted(status)) {
    LODESTONE_RETURN_IF_ERROR(store_->Follow(record.shard()));
    return absl::DataLossError(status.message());
  }
  return status;
}

void Follower::Link::FillStatus(v1::StatusResponse* status) const {
  v1::ReplicationStatus* const out = status->mutable_replication();
  for (const ShardId shard : shards_) {
    out->set_shards_following(out->shards_following() + 1);
    out->set_shards_followed(out->shards_followed() + (store_->RoleOf(shard) == ShardRole::kFollows));
  }
  MutexLock lock(&mu_);
  if (broken_.empty()) return;
  v1::WaitStatus* const wait = status->add_waits();
  wait->set_who(absl::StrCat("ps ", options_.server));
  wait->set_what(absl::StrCat("ps ", owner_, " at ", address_, ", to follow ", shards_.size(), " shards: ", broken_));
  wait->set_seconds(static_cast<double>(time_.NowMs() - broken_since_ms_) / 1000);
}

Follower::Follower(Options options, Store* store) : options_(std::move(options)), store_(store) {}

Follower::~Follower() { Stop(); }

void Follower::SetMap(const ShardMap& map) {
  std::map<uint32_t, std::vector<ShardId>> wanted;
  for (const ShardId shard : map.FollowedBy(options_.server)) wanted[map.OwnerOf(shard)].push_back(shard);
  std::map<uint32_t, std::shared_ptr<Link>> links;
  {
    MutexLock lock(&mu_);
    links = links_;
  }
  for (auto& [owner, link] : links) {
    const auto shards = wanted.find(owner);
    if (shards != wanted.end() && link->Is(map.AddressOf(owner), map.IncarnationOf(owner), shards->second)) continue;
    link->Stop();
    MutexLock lock(&mu_);
    links_.erase(owner);
  }
  std::string problem;
  for (auto& [owner, shards] : wanted) {
    const auto link = links.find(owner);
    if (link != links.end() && link->second->Is(map.AddressOf(owner), map.IncarnationOf(owner), shards)) continue;
    for (const ShardId shard : shards) {
      // One that is followed already is whole, and may stay so with another owner: that one knows.
      if (store_->RoleOf(shard) == ShardRole::kFollows || store_->RoleOf(shard) == ShardRole::kFollowing) continue;
      const absl::Status status = store_->Follow(shard);
      if (!status.ok()) problem = status.ToString();
    }
    std::erase_if(shards, [this](ShardId shard) { return store_->RoleOf(shard) < ShardRole::kFollowing; });
    auto fresh =
        std::make_shared<Link>(options_, store_, owner, map.AddressOf(owner), map.IncarnationOf(owner), shards);
    MutexLock lock(&mu_);
    links_[owner] = std::move(fresh);
  }
  if (!problem.empty()) LODESTONE_LOG(ERROR, "replication", "cannot follow all that it should: {}", problem);
  MutexLock lock(&mu_);
  problem_ = std::move(problem);
}

void Follower::Stop() {
  std::map<uint32_t, std::shared_ptr<Link>> links;
  {
    MutexLock lock(&mu_);
    links.swap(links_);
  }
  for (auto& [owner, link] : links) link->Stop();
}

void Follower::FillStatus(v1::StatusResponse* status) const {
  std::vector<std::shared_ptr<Link>> links;
  {
    MutexLock lock(&mu_);
    for (const auto& [owner, link] : links_) links.push_back(link);
    if (!problem_.empty()) {
      v1::WaitStatus* const wait = status->add_waits();
      wait->set_who(absl::StrCat("ps ", options_.server));
      wait->set_what(absl::StrCat("room to follow shards: ", problem_));
    }
  }
  for (const auto& link : links) link->FillStatus(status);
}

}  // namespace lodestone
