#include "server/coordinator/election.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/nonce.h"
#include "common/base/retry.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"

namespace lodestone::server {
namespace {

constexpr int64_t kTimeoutMsMin = 1000;  // Of one of etcd's endpoints.
constexpr int64_t kTimeoutMsMax = 5000;
constexpr int64_t kRenewalTimeoutMsMin = 500;
constexpr int64_t kRenewalRetryMs = 100;  // Between two attempts at a renewal.
constexpr int64_t kRevokeTimeoutMs = 500;
constexpr int64_t kPollMsMin = 100;  // Between two looks at who is elected.
constexpr int64_t kPollMsMax = 1000;

// The lease to ask for: etcd counts in seconds.
int64_t LeaseSeconds(uint32_t lease_ms) { return std::max<int64_t>(1, (int64_t{lease_ms} + 999) / 1000); }

// An endpoint that does not answer leaves time for the others.
int64_t TimeoutMs(uint32_t lease_ms) { return std::clamp<int64_t>(lease_ms / 2, kTimeoutMsMin, kTimeoutMsMax); }
int64_t RenewalTimeoutMs(uint32_t lease_ms) {
  return std::clamp<int64_t>(LeaseSeconds(lease_ms) * 1000 / 6, kRenewalTimeoutMsMin, kTimeoutMsMax);
}

}  // namespace

Election::Election(Options options, Events events)
    : options_(std::move(options)),
      events_(std::move(events)),
      coordinator_key_(EtcdCoordinatorKey(options_.cluster)),
      state_key_(EtcdStateKey(options_.cluster)),
      etcd_(options_.etcd, TimeoutMs(options_.lease_ms), options_.etcd_credentials),
      renewals_(options_.etcd, RenewalTimeoutMs(options_.lease_ms), options_.etcd_credentials) {}

void Election::Start(std::string address) {
  address_ = std::move(address);
  thread_ = std::thread([this] { Run(); });
}

Election::~Election() { Stop(); }

void Election::Stop() {
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    changed_.NotifyAll();
  }
  etcd_.Stop();
  renewals_.Stop();
  if (thread_.joinable()) thread_.join();
}

bool Election::LeadsLocked(int64_t term) const {
  return term_ == term && deposed_.ok() && !stopped_ && options_.time->NowMs() < lease_end_ms_;
}

bool Election::Leads(int64_t term) const {
  MutexLock lock(&mu_);
  return LeadsLocked(term);
}

std::string Election::leader() const {
  MutexLock lock(&mu_);
  return leader_;
}

absl::Status Election::health() const {
  MutexLock lock(&mu_);
  return health_;
}

void Election::SetLeader(const std::string& address) {
  MutexLock lock(&mu_);
  if (leader_ == address) return;
  leader_ = address;
  if (!address.empty()) LODESTONE_LOG(INFO, "election", "the coordinator is served at={}", address);
}

void Election::NoteHealth(const absl::Status& status) {
  MutexLock lock(&mu_);
  if (stopped_) return;
  if (!status.ok() && health_.ok()) {
    ill_since_ms_ = options_.time->NowMs();
    LODESTONE_LOG(WARN, "election", "{}", status.ToString());
  } else if (status.ok() && !health_.ok()) {
    LODESTONE_LOG(INFO, "election", "what kept this ps from etcd or from the election is over");
  }
  health_ = status;
}

void Election::FillStatus(v1::StatusResponse* status) const {
  MutexLock lock(&mu_);
  if (health_.ok()) return;
  v1::WaitStatus* const wait = status->add_waits();
  wait->set_who("the election of the coordinator");
  wait->set_background(true);
  wait->set_what(std::string(health_.message()));
  wait->set_seconds(static_cast<double>(options_.time->NowMs() - ill_since_ms_) / 1000.0);
}

bool Election::Pause(int64_t ms) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
  MutexLock lock(&mu_);
  while (!stopped_ && deposed_.ok() && !hurried_ && changed_.WaitUntil(&mu_, until)) {
  }
  return !stopped_;
}

void Election::Run() {
  const int64_t poll_ms = std::clamp<int64_t>(options_.lease_ms / 20, kPollMsMin, kPollMsMax);
  Backoff backoff(DrawNonce());
  for (;;) {
    const absl::Status status = RunOnce();
    NoteHealth(status);
    if (status.ok()) backoff.Reset();
    if (!Pause(status.ok() ? poll_ms : backoff.NextMs())) return;
  }
}

absl::Status Election::RunOnce() {
  {
    MutexLock lock(&mu_);
    hurried_ = false;
  }
  LODESTONE_ASSIGN_OR_RETURN(const std::optional<EtcdClient::Value> found, etcd_.Get(coordinator_key_));
  const bool is_start = !std::exchange(looked_, true);
  SetLeader(found.has_value() ? found->bytes : "");
  if (!found.has_value()) return Campaign();
  if (IsGone(*found, is_start)) {
    LODESTONE_LOG(WARN, "election", "the ps that served the coordinator is dead, and its lease is ended at={}",
                  found->bytes);
    const absl::Status ended = etcd_.Revoke(found->lease);
    if (!ended.ok() && !absl::IsNotFound(ended)) return ended;
    return Campaign();
  }
  if (events_.on_other_elected) events_.on_other_elected(found->bytes, found->lease);
  return absl::OkStatus();
}

bool Election::IsGone(const EtcdClient::Value& elected, bool is_start) {
  if (elected.lease == 0) return false;
  // At its start, an earlier life of this ps: nobody else can listen at its address. Later it would be its successor.
  if (is_start && elected.bytes == address_) return true;
  MutexLock lock(&mu_);
  return elected.lease == gone_lease_;
}

void Election::NoteGone(int64_t lease) {
  MutexLock lock(&mu_);
  gone_lease_ = lease;
  hurried_ = term_ == 0;
  changed_.NotifyAll();
}

absl::Status Election::Campaign() {
  const int64_t asked_ms = options_.time->NowMs();
  LODESTONE_ASSIGN_OR_RETURN(const EtcdClient::Lease lease, etcd_.Grant(LeaseSeconds(options_.lease_ms)));
  const absl::StatusOr<int64_t> term = CreateKey(lease.id);
  absl::Status status = term.status();
  if (term.ok() && *term != 0) status = Serve(*term, lease, asked_ms + lease.seconds * 1000);
  Revoke(lease.id);
  return status;
}

absl::StatusOr<int64_t> Election::CreateKey(int64_t lease) {
  LODESTONE_ASSIGN_OR_RETURN(
      const EtcdClient::PutOutcome outcome,
      etcd_.PutIf({{coordinator_key_, EtcdClient::Condition::What::kCreated, 0}}, coordinator_key_, address_, lease));
  if (outcome.done) return outcome.revision;
  const std::optional<EtcdClient::Value>& found = outcome.found[0];
  // With our lease it is ours: the answer of an earlier attempt was lost.
  if (found.has_value() && found->lease == lease) return found->created;
  // Its death would not be noticed before it is known.
  if (found.has_value() && events_.on_other_elected) events_.on_other_elected(found->bytes, found->lease);
  return 0;
}

absl::Status Election::Serve(int64_t term, const EtcdClient::Lease& lease, int64_t lease_end_ms) {
  {
    MutexLock lock(&mu_);
    term_ = term;
    lease_end_ms_ = lease_end_ms;
    state_open_ = false;
    hurried_ = false;
  }
  SetLeader(address_);
  absl::Status status;
  if (absl::StatusOr<std::optional<v1::CoordinatorState>> state = LoadState(); state.ok()) {
    status = events_.on_elected(term, *state);
  } else {
    status = state.status();
  }
  const bool served = status.ok();
  if (served) NoteHealth(absl::OkStatus());
  absl::Status reason = served ? KeepLease(lease) : absl::OkStatus();
  bool stopped = false;
  {
    MutexLock lock(&mu_);
    term_ = 0;
    deposed_ = absl::OkStatus();
    leader_.clear();
    stopped = stopped_;
  }
  if (!served) return Annotate(status, "this ps was elected, and cannot serve the coordinator");
  if (stopped) return absl::OkStatus();
  LODESTONE_LOG(WARN, "election", "this ps does not serve the coordinator any more: {}", reason.ToString());
  events_.on_deposed(term, reason);
  return absl::IsDeadlineExceeded(reason) ? reason : absl::OkStatus();  // As long as etcd cannot be reached.
}

absl::StatusOr<std::optional<v1::CoordinatorState>> Election::LoadState() {
  LODESTONE_ASSIGN_OR_RETURN(const std::optional<EtcdClient::Value> found, etcd_.Get(state_key_));
  {
    MutexLock lock(&mu_);
    state_revision_ = found.has_value() ? found->modified : 0;
  }
  if (!found.has_value()) return std::nullopt;
  v1::CoordinatorState state;
  if (state.ParseFromString(found->bytes)) return state;
  return absl::DataLossError(absl::StrCat("etcd's key ", state_key_, " (", found->bytes.size(),
                                          " bytes) does not hold the state of a coordinator"));
}

absl::Status Election::KeepLease(const EtcdClient::Lease& lease) {
  LODESTONE_LOG(INFO, "election", "this ps serves the coordinator lease_s={}", lease.seconds);
  int64_t pause_ms = lease.seconds * 1000 / 3;
  while (Pause(pause_ms)) {
    {
      MutexLock lock(&mu_);
      if (!deposed_.ok()) return deposed_;
    }
    LODESTONE_RETURN_IF_ERROR(Renew(lease.id));
    pause_ms = health().ok() ? lease.seconds * 1000 / 3 : kRenewalRetryMs;
  }
  return absl::CancelledError("the ps ends");
}

absl::Status Election::Renew(int64_t lease) {
  const int64_t asked_ms = options_.time->NowMs();
  const absl::StatusOr<int64_t> seconds = renewals_.KeepAlive(lease);
  NoteHealth(absl::IsNotFound(seconds.status()) ? absl::OkStatus() : seconds.status());
  if (absl::IsNotFound(seconds.status())) return seconds.status();
  MutexLock lock(&mu_);
  if (options_.time->NowMs() >= lease_end_ms_) {
    return absl::DeadlineExceededError(
        seconds.ok() ? "the lease was renewed too late"
                     : absl::StrCat("the lease could not be renewed in time: ", seconds.status().message()));
  }
  if (seconds.ok()) lease_end_ms_ = asked_ms + *seconds * 1000;
  return absl::OkStatus();
}

void Election::Revoke(int64_t lease) {
  EtcdClient etcd(options_.etcd, kRevokeTimeoutMs, options_.etcd_credentials);  // Also when the others were stopped.
  const absl::Status status = etcd.Revoke(lease);
  if (status.ok() || absl::IsNotFound(status)) return;
  LODESTONE_LOG(INFO, "election", "etcd keeps the lease until it ends by itself: {}", status.ToString());
}

absl::Status Election::Save(int64_t term, const v1::CoordinatorState& state) {
  const std::string bytes = state.SerializeAsString();
  if (bytes.size() > limits::kEtcdStateBytesMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the coordinator's state takes ", bytes.size(), " bytes and may take ", limits::kEtcdStateBytesMax,
                     " in etcd: cluster.shards (", state.shards(), ") or cluster.workers is too large for it"));
  }
  for (;;) {
    int64_t base = 0;
    {
      MutexLock lock(&mu_);
      if (!LeadsLocked(term)) {
        return absl::FailedPreconditionError("this ps does not serve the coordinator any more");
      }
      base = state_revision_;
    }
    const absl::StatusOr<EtcdClient::PutOutcome> outcome =
        etcd_.PutIf({{coordinator_key_, EtcdClient::Condition::What::kCreated, term},
                     {state_key_, EtcdClient::Condition::What::kModified, base}},
                    state_key_, bytes, /*lease=*/0);
    MutexLock lock(&mu_);
    if (term_ != term) return absl::FailedPreconditionError("this ps does not serve the coordinator any more");
    if (!outcome.ok()) {
      state_open_ = true;
      return outcome.status();
    }
    if (outcome->done) {
      state_revision_ = outcome->revision;
      state_open_ = false;
      return absl::OkStatus();
    }
    const bool elected = outcome->found[0].has_value() && outcome->found[0]->created == term;
    if (!elected || !(state_open_ || outcome->repeated)) {
      deposed_ =
          absl::AbortedError(elected ? absl::StrCat("etcd's key ", state_key_, " was written by another process")
                                     : absl::StrCat("another ps was elected, says etcd's key ", coordinator_key_));
      changed_.NotifyAll();
      return deposed_;
    }
    // An earlier attempt of our own was done. What other attempts are still on their way compares with an older
    // revision, and changes nothing.
    state_revision_ = outcome->found[1].has_value() ? outcome->found[1]->modified : 0;
    state_open_ = false;
  }
}

}  // namespace lodestone::server
