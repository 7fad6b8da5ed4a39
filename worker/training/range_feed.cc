#include "worker/training/range_feed.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/retry.h"
#include "common/base/status.h"
#include "common/telemetry/histogram.h"
#include "worker/client/client.h"
#include "worker/data/epoch_batches.h"

namespace lodestone::worker {
namespace {

// Of an epoch, a range is this part by default, and so many batches: enough that leasing them costs little, and few
// enough that little is computed again when a worker dies.
constexpr uint64_t kRangesPerEpoch = 64;
constexpr uint64_t kRangeBatchesMin = 64;
constexpr uint64_t kRangeBatchesMax = 256;
// Between two questions for a range while others have all that are left.
constexpr int64_t kAskEveryMs = 50;
constexpr int64_t kAskForTheEndEveryMs = 200;
constexpr int64_t kAskInPauseEveryMs = 5;
// For a batch of a synchronous step: after one part of so many of the time that it has waited.
constexpr int64_t kStepWaitShare = 16;
constexpr int64_t kAttemptMs = 5'000;
constexpr int64_t kLookForStopEveryMs = 100;

}  // namespace

v1::RangePlan PlanOf(const v1::Config& config, uint64_t samples, EpochBatches* batches,
                     const std::optional<v1::Consistency::Sync>& sync) {
  const v1::TrainConfig& train = config.train();
  v1::RangePlan plan;
  plan.set_run(train.run());
  const uint64_t window = EpochBatches::WindowOf(config);
  plan.set_description(absl::StrCat(
      samples, " samples, ", train.epochs(), " epochs, batches of ", train.batch_size(),
      train.shuffle() ? absl::StrCat(", shuffled by seed ", config.cluster().seed()) : ", in the files' order",
      train.shuffle() && window > 0 ? absl::StrCat(" in windows of ", window) : ""));
  plan.set_epoch_batches(batches->epoch_batches());
  plan.set_batches(batches->batches());
  plan.set_samples(batches->total_samples());
  const uint64_t fair = std::clamp(batches->epoch_batches() / kRangesPerEpoch, kRangeBatchesMin, kRangeBatchesMax);
  plan.set_range_batches(train.range_batches() > 0 ? train.range_batches() : static_cast<uint32_t>(fair));
  if (!sync.has_value()) return plan;
  plan.set_description(absl::StrCat(plan.description(), ", synchronous steps of ", sync->batches(), " batches"));
  plan.set_epochs_batches(batches->batches());
  plan.set_batches(StepBatches(batches, sync->batches()).batches());
  plan.set_range_batches(1);
  plan.set_step_batches(sync->batches());
  plan.set_step_quorum(sync->quorum());
  plan.set_step_backup(sync->backup());
  return plan;
}

RangeFeed::RangeFeed(Client* client, EpochBatches* batches, Options options)
    : client_(client), batches_(batches), options_(std::move(options)), steps_(options_.steps) {
  if (HasSteps()) step_batches_.emplace(batches, options_.plan.step_batches());
  leaser_ = std::thread([this] { Run(); });
}

RangeFeed::~RangeFeed() {
  Stop();
  if (leaser_.joinable()) leaser_.join();
}

RangeFeed::Held* RangeFeed::CurrentLocked() {
  for (Held& held : held_) {
    if (held.handed_out < held.lease.batches()) return &held;
  }
  return nullptr;
}

bool RangeFeed::WantsRangeLocked() const {
  return std::none_of(held_.begin(), held_.end(), [](const Held& held) {
    return held.handed_out == held.lease.done() && held.handed_out < held.lease.batches();
  });
}

bool RangeFeed::PauseIsAnnouncedLocked() const { return pause_announced_ || client_->PauseAnnounced(); }

int64_t RangeFeed::PauseMsLocked() const {
  if (!HasSteps() || without_since_ns_ == 0) return kAskEveryMs;
  return std::clamp<int64_t>((NowNs() - without_since_ns_) / 1'000'000 / kStepWaitShare, 1, kAskEveryMs);
}

void RangeFeed::Run() {
  while (true) {
    bool wanted = false;
    {
      MutexLock lock(&mu_);
      while (!stopped_ && !over_ && !WantsRangeLocked() && !unreported_ && !PauseIsAnnouncedLocked()) {
        changed_.WaitUntil(&mu_, std::chrono::steady_clock::now() + std::chrono::milliseconds(kLookForStopEveryMs));
      }
      if (stopped_ || over_) return;
      wanted = WantsRangeLocked();
    }
    const absl::StatusOr<v1::LeaseRangesResponse> response = Ask(Does::kTrain);
    int64_t pause_ms = 0;
    {
      MutexLock lock(&mu_);
      over_ = !response.ok() || response->complete() || response->over();
      paused_ = !over_ && (response->pause() || response->orders() != options_.orders);
      pause_announced_ = response.ok() && response->pause_announced();
      if (!stopped_) error_ = response.status();
      changed_.NotifyAll();
      if (over_ || paused_) return;
      if (response->has_lease() || (!wanted && !PauseIsAnnouncedLocked())) continue;
      pause_ms = PauseMsLocked();
    }
    if (!Pause(pause_ms, Does::kTrain)) return;
  }
}

absl::StatusOr<bool> RangeFeed::Next(BatchPipeline::Assignment* next) {
  v1::RangeLease lease;  // Of a batch of a step.
  {
    MutexLock lock(&mu_);
    const int64_t start_ns = NowNs();
    while (!stopped_ && !over_ && !paused_ && CurrentLocked() == nullptr) {
      if (options_.stops && options_.stops()) return false;
      changed_.WaitUntil(&mu_, std::chrono::steady_clock::now() + std::chrono::milliseconds(kLookForStopEveryMs));
    }
    waited_ns_ += NowNs() - start_ns;
    if (stopped_) return false;
    Held* const held = CurrentLocked();
    if (paused_ && (held == nullptr || !HasSteps())) return false;  // Of a step what it has is awaited.
    if (held == nullptr) {
      LODESTONE_RETURN_IF_ERROR(error_);
      return false;
    }
    const uint32_t batch = held->handed_out++;
    next->number = held->lease.first_batch() + batch;
    next->range = held->session;
    next->sequence = batch + 1;
    if (HasSteps()) {
      next->range = {held->lease.incarnation(), nullptr};
      next->contribution.emplace().set_step(held->lease.step());
      next->contribution->set_batch(static_cast<uint32_t>(next->number % options_.plan.step_batches()));
      lease = held->lease;
    }
    if (WantsRangeLocked()) changed_.NotifyAll();
  }
  if (!step_batches_.has_value()) {
    batches_->Read(next->number, &next->indices);
    return true;
  }
  LODESTONE_RETURN_IF_ERROR(ReadOfStep(lease, next));
  next->contribution->set_samples(next->indices.size());
  return true;
}

absl::Status RangeFeed::ReadOfStep(const v1::RangeLease& lease, BatchPipeline::Assignment* next) {
  if (lease.made_of().empty()) {
    step_batches_->Read(next->number, &next->indices);
    return absl::OkStatus();
  }
  const std::vector<uint64_t> numbers(lease.made_of().begin(), lease.made_of().end());
  for (const uint64_t number : numbers) {
    if (number >= batches_->batches()) {
      return absl::InternalError(absl::StrCat("the coordinator leases batch ", number, " of ", batches_->batches()));
    }
  }
  next->number = numbers[0];
  if (lease.is_part()) {
    step_batches_->ReadPart(numbers, next->contribution->batch(), &next->indices);
  } else {
    step_batches_->ReadWhole(next->number, &next->indices);
  }
  return absl::OkStatus();
}

void RangeFeed::Acknowledged(Incarnation range, Sequence sequence) {
  MutexLock lock(&mu_);
  for (Held& held : held_) {
    if (held.lease.incarnation() != range) continue;
    held.acknowledged[sequence - 1] = true;
    while (held.done < held.lease.batches() && held.acknowledged[held.done]) ++held.done;
    if (HasSteps()) unreported_ = true;
    if (held.done == held.lease.batches()) changed_.NotifyAll();
    return;
  }
}

void RangeFeed::Stop() {
  MutexLock lock(&mu_);
  stopped_ = true;
  changed_.NotifyAll();
}

bool RangeFeed::Pause(int64_t ms, Does does) {
  MutexLock lock(&mu_);
  if (stopped_ && does == Does::kTrain) return false;
  changed_.WaitUntil(&mu_, std::chrono::steady_clock::now() + std::chrono::milliseconds(ms));
  return !stopped_ || does != Does::kTrain;
}

v1::LeaseRangesRequest RangeFeed::RequestLocked(Does does) const {
  v1::LeaseRangesRequest request;
  *request.mutable_plan() = options_.plan;
  request.set_orders(options_.orders);
  for (const Held& held : held_) {
    v1::LeaseRangesRequest::Held* const out = request.add_held();
    out->set_incarnation(held.lease.incarnation());
    out->set_done(held.done);
    out->set_given_back(does != Does::kTrain);
  }
  request.set_wants_range(does == Does::kTrain && WantsRangeLocked());
  request.set_finished(does == Does::kEnd);
  request.set_paused(does == Does::kPause);
  if (HasSteps()) request.set_steps(steps_);
  return request;
}

void RangeFeed::TakeLocked(const v1::LeaseRangesRequest& request, const v1::LeaseRangesResponse& response,
                           RangeSession session) {
  complete_ = response.complete();
  steps_done_ = std::max(steps_done_, response.steps());
  // What was reported as done, or given back, the coordinator does not wait for any more.
  for (const auto& reported : request.held()) {
    held_.remove_if([&](const Held& held) {
      return held.lease.incarnation() == reported.incarnation() &&
             (reported.given_back() || reported.done() == held.lease.batches());
    });
  }
  if (response.has_lease()) {
    without_since_ns_ = 0;
  } else if (without_since_ns_ == 0 && request.wants_range()) {
    without_since_ns_ = NowNs();
  }
  if (!response.has_lease()) return;
  // Of single batches a coordinator that was started again may give one that this worker has.
  if (std::any_of(held_.begin(), held_.end(),
                  [&](const Held& held) { return held.lease.incarnation() == response.lease().incarnation(); })) {
    return;
  }
  Held held;
  held.lease = response.lease();
  held.handed_out = held.done = held.lease.done();
  held.acknowledged.assign(held.lease.batches(), false);
  std::fill_n(held.acknowledged.begin(), held.done, true);
  held.session = std::move(session);
  held_.push_back(std::move(held));
}

absl::StatusOr<v1::LeaseRangesResponse> RangeFeed::Ask(Does does, bool evaluated) {
  Retry retry({kAttemptMs, options_.retry_timeout_ms}, options_.time, static_cast<uint64_t>(options_.time->NowMs()));
  while (true) {
    v1::LeaseRangesRequest request;
    {
      MutexLock lock(&mu_);
      if (stopped_ && does == Does::kTrain) return absl::CancelledError("stopped");
      request = RequestLocked(does);
      unreported_ = false;
      request.set_evaluated(evaluated);
    }
    const absl::StatusOr<v1::LeaseRangesResponse> response = client_->LeaseRanges(request);
    if (response.ok()) {
      RangeSession session;
      if (response->has_lease() && !HasSteps()) session = client_->OpenRange(response->lease().incarnation());
      MutexLock lock(&mu_);
      TakeLocked(request, *response, std::move(session));
      return response;
    }
    // A coordinator that shuts down cancels the calls that it has; this side cancels none.
    const bool cancelled = absl::IsCancelled(response.status());
    const std::optional<int64_t> pause_ms =
        retry.Next(cancelled ? absl::StatusCode::kUnavailable : response.status().code());
    if (!pause_ms.has_value()) return response.status();
    if (!Pause(*pause_ms, does)) return absl::CancelledError("stopped");
  }
}

absl::StatusOr<RangeFeed::Ending> RangeFeed::Finish(const std::function<bool()>& stops) {
  EndLeasing();
  while (true) {
    LODESTONE_ASSIGN_OR_RETURN(const v1::LeaseRangesResponse response, Ask(Does::kEnd));
    {
      MutexLock lock(&mu_);
      is_behind_ = response.orders() != options_.orders;
    }
    if (response.over()) return Ending::kOver;
    if (response.evaluate()) return Ending::kEvaluate;
    if (stops()) return Ending::kStopped;
    Pause(kAskForTheEndEveryMs, Does::kEnd);
  }
}

absl::Status RangeFeed::Evaluated() { return Ask(Does::kEnd, /*evaluated=*/true).status(); }

absl::StatusOr<std::optional<uint64_t>> RangeFeed::AwaitEndOfPause(const std::function<bool()>& stops) {
  EndLeasing();
  while (true) {
    LODESTONE_ASSIGN_OR_RETURN(const v1::LeaseRangesResponse response, Ask(Does::kPause));
    {
      MutexLock lock(&mu_);
      is_behind_ = response.orders() != options_.orders;
    }
    if (response.complete() || response.over() || stops()) return std::optional<uint64_t>();
    if (!response.pause()) return std::optional<uint64_t>(response.orders());
    Pause(kAskInPauseEveryMs, Does::kPause);
  }
}

void RangeFeed::EndLeasing() {
  Stop();
  if (leaser_.joinable()) leaser_.join();  // It may get a range yet, which is given back with the others.
}

bool RangeFeed::paused() const {
  MutexLock lock(&mu_);
  return paused_;
}

void RangeFeed::NoteSteps(uint64_t steps) {
  MutexLock lock(&mu_);
  steps_ = std::max(steps_, steps);
}

uint64_t RangeFeed::steps_done() const {
  MutexLock lock(&mu_);
  return is_behind_ ? 0 : steps_done_;
}

double RangeFeed::waited_seconds() const {
  MutexLock lock(&mu_);
  return 1e-9 * static_cast<double>(waited_ns_);
}

bool RangeFeed::complete() const {
  MutexLock lock(&mu_);
  return complete_;
}

}  // namespace lodestone::worker
