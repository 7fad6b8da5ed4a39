#include "worker/client/subscription.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/base/time_source.h"
#include "common/telemetry/log.h"
#include "common/wire/message.h"
#include "proto/parameter_server.pb.h"

namespace lodestone::worker {
namespace {

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

Subscription::Subscription(std::string peer, std::unique_ptr<Connection> connection, Options options)
    : options_(std::move(options)),
      peer_(std::move(peer)),
      connection_(std::move(connection)),
      backoff_(options_.seed) {
  for (const TableHandle* table : options_.tables) tables_.emplace(table->id, table);
  {
    MutexLock lock(&mu_);
    wanted_ = options_.wanted;
    resting_ = !wanted_;
  }
  if (options_.wanted) Start();
}

Subscription::~Subscription() {
  std::shared_ptr<Connection> connection;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    if (pause_ != 0 && options_.timer->Cancel(pause_)) pause_ = 0;
    while (pause_ != 0 || starting_ > 0) stopped_.Wait(&mu_);
    connection = connection_;
  }
  connection->Close();
}

void Subscription::Redirect(std::string peer, std::unique_ptr<Connection> connection) {
  std::shared_ptr<Connection> former = std::move(connection);
  {
    MutexLock lock(&mu_);
    connection_.swap(former);
    peer_ = std::move(peer);
    ++redirects_;
    backoff_.Reset();
    if (pause_ != 0 && options_.timer->Cancel(pause_)) pause_ = options_.timer->After(0, [this] { Start(); });
  }
  former->Close();  // If a stream is open there, its end starts the next.
}

void Subscription::Follow(bool wanted) {
  MutexLock lock(&mu_);
  wanted_ = wanted;
  if (!wanted) return;
  backoff_.Reset();
  if (!resting_ && (pause_ == 0 || !options_.timer->Cancel(pause_))) return;
  resting_ = false;
  pause_ = options_.timer->After(0, [this] { Start(); });
}

void Subscription::Start() {
  v1::Call call;
  v1::SubscribeRequest& request = *call.mutable_subscribe();
  request.set_worker_incarnation(options_.incarnation);
  for (const TableHandle* table : options_.tables) {
    v1::SubscribeRequest::TableSubscription* const wanted = request.add_tables();
    wanted->set_table(table->id);
    wanted->set_rows(!table->spec.has_dense());
  }
  *request.mutable_held() = options_.positions->Held();
  std::shared_ptr<Connection> connection;
  Started started{.known = options_.sessions->IsOpen(options_.server)};
  {
    MutexLock lock(&mu_);
    pause_ = 0;
    stopped_.NotifyAll();
    if (stopping_) return;
    connection = connection_;
    started.redirects = redirects_;
    ++starting_;
    started_ms_ = SteadyTime().NowMs();
  }
  auto reader = std::make_shared<DeltaReader>(&tables_, options_.positions.get(), &options_.listener);
  connection->Subscribe(
      &call,
      [reader](const v1::Delta& delta, const Payload& payload) {
        const absl::Status status = reader->Read(delta, payload);
        return status.ok() ? status : absl::InternalError(status.message());
      },
      [this, started](const absl::StatusOr<Connection::Answer>& answer) { OnEnd(answer.status(), started); });
  connection.reset();  // Before the destructor may go on.
  MutexLock lock(&mu_);
  --starting_;
  stopped_.NotifyAll();
}

void Subscription::OnEnd(const absl::Status& status, const Started& started) {
  absl::Status named;
  bool final = false;
  const bool unknown = IsUnknownThere(status) && !started.known;
  {
    MutexLock lock(&mu_);
    named = Annotate(status.ok() ? absl::InternalError("an answer that is no delta") : status,
                     absl::StrCat("subscription at ", peer_));
    final = !stopping_ && started.redirects == redirects_ && IsFinal(status) && !unknown;
  }
  if (final) options_.on_lost(named);
  if (unknown) options_.sessions->Open(options_.server, [](const absl::Status&) {});
  if (absl::IsUnavailable(status) && options_.on_unreachable) options_.on_unreachable();
  MutexLock lock(&mu_);
  if (stopping_ || final) return;
  if (!wanted_) {
    resting_ = true;
    return;
  }
  if (started.redirects != redirects_) {
    pause_ = options_.timer->After(0, [this] { Start(); });
    return;
  }
  const int64_t now_ms = SteadyTime().NowMs();
  if (now_ms - started_ms_ > limits::kRetryBackoffMaxMs) backoff_.Reset();
  if (logged_ms_ == 0 || now_ms - logged_ms_ >= kLogEveryMs) {
    logged_ms_ = now_ms;
    LODESTONE_LOG(WARN, "client", "subscription is renewed reason={}", named.ToString());
  }
  pause_ = options_.timer->After(backoff_.NextMs(), [this] { Start(); });
}

}  // namespace lodestone::worker
