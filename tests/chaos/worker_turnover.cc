#include "tests/chaos/worker_turnover.h"

#include <signal.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "common/base/time_source.h"
#include "common/config/options.h"

namespace lodestone::chaos {
namespace {

constexpr int64_t kAskEveryMs = 100;
constexpr int kAnswerMs = 200;
constexpr int kExitOfSigterm = 128 + SIGTERM;
// Batches between two turns, at most.
constexpr uint64_t kTurnBatchesMax = 2 * CountingWorkers::kBatchesPerEpoch;
constexpr uint64_t kTurnsPerOrder = 3;  // One in so many is a change of the order of steps.

}  // namespace

WorkerTurnover::WorkerTurnover(const PsCluster* cluster, const Options& options)
    : seed_(options.seed), workers_max_(options.workers_max), training_(cluster, [&] {
        CountingWorkers::Options training = options.training;
        training.epochs = kEpochs;
        return training;
      }()) {
  if (options.psctl_binary.empty()) return;
  orders_ =
      std::make_unique<OrderChanges>(OrderChanges::Options{.psctl_binary = options.psctl_binary,
                                                           .coordinator = cluster->config().coordinator().address(),
                                                           .folder = options.training.folder,
                                                           .tables = CountingWorkers::kTables});
}

TurnoverReport WorkerTurnover::report() const {
  TurnoverReport report = report_;
  if (orders_ == nullptr) return report;
  report.orders = orders_->set();
  report.operators_killed = orders_->killed();
  report.operators_stopped = orders_->stopped();
  return report;
}

uint64_t WorkerTurnover::Draw(uint64_t bound) { return RandomBits(StreamSeed(seed_, 0xfc), drawn_++) % bound; }

std::string WorkerTurnover::RunName() const { return absl::StrCat("run-", report_.runs + 1); }

bool WorkerTurnover::RunIsOver() const { return state_.plan().run() == RunName() && state_.over(); }

std::string WorkerTurnover::Describe() const {
  return absl::StrCat("run ", report_.runs + 1, ", batch ", CountingWorkers::Done(state_), " of ",
                      kEpochs * CountingWorkers::kBatchesPerEpoch, ", ", training_.running().size(), " workers");
}

absl::Status WorkerTurnover::StartWorker() {
  ++report_.joined;
  // One that comes when the run is over finds it so.
  return training_.Start({absl::StrCat("train.run=", RunName()), absl::StrCat("worker.launch=", RunName())});
}

void WorkerTurnover::Pause() {
  paused_ = true;
  if (orders_ != nullptr) orders_->Interrupt();
  for (const auto& worker : training_.running()) {
    if (told_.insert(worker->pid()).second) worker->Signal(SIGTERM);
  }
}

absl::Status WorkerTurnover::TakeTurn() {
  next_turn_ = done() + 1 + Draw(kTurnBatchesMax);
  if (orders_ != nullptr && (!finishing_ || LacksOrder()) && Draw(kTurnsPerOrder) == 0) {
    orders_->Want(Draw(UINT64_MAX));
    return absl::OkStatus();
  }
  const auto& workers = training_.running();
  const bool may_end = !finishing_ || LacksEnd();
  if (!may_end || Draw(3) > 0) return workers.size() < workers_max_ ? StartWorker() : absl::OkStatus();
  const bool leaves = Draw(3) == 0;
  const psctl::Child& worker = *workers[Draw(workers.size())];
  if (!told_.insert(worker.pid()).second) return absl::OkStatus();  // It is about to leave.
  worker.Signal(leaves ? SIGTERM : SIGKILL);
  ++(leaves ? report_.left : report_.killed);
  return absl::OkStatus();
}

absl::Status WorkerTurnover::TakeCounts() {
  if (counts_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return absl::OkStatus();
  LODESTONE_ASSIGN_OR_RETURN(const auto counts, counts_.get());
  const int64_t expected = static_cast<int64_t>(report_.runs + 1) * kEpochs;
  if (counts.size() != 1 || !counts.contains(expected)) {
    return absl::DataLossError(absl::StrCat(
        "after run ", report_.runs + 1, " each sample must have been trained ", expected,
        " times, and it is, times and samples: ", absl::StrJoin(counts, ", ", absl::PairFormatter(" -> "))));
  }
  report_.again += state_.leased_again();
  ++report_.runs;
  state_.Clear();
  next_turn_ = 0;
  finished_ = finishing_ && !LacksEnd() && !LacksOrder() && (orders_ == nullptr || orders_->settled());
  return absl::OkStatus();
}

absl::Status WorkerTurnover::Tick() {
  for (const CountingWorkers::End& end : training_.Pump()) {
    // kExitUntrained: the one that evaluated says that others pushed meanwhile, or that samples were missed, which are
    // counted.
    if (end.exit_code == 0 || end.exit_code == kExitOfSigterm || end.exit_code == kExitUntrained) continue;
    // SIGTERM ends a process that has not come to look for it.
    if (end.signal != SIGKILL && end.signal != SIGTERM) return absl::InternalError(end.outcome);
  }
  // With workers only: where ranges were begun a pause waits for one.
  if (orders_ != nullptr) LODESTONE_RETURN_IF_ERROR(orders_->Tick(!paused_ && !training_.running().empty()));
  if (counts_.valid()) return TakeCounts();
  if (finished_) return absl::OkStatus();
  if (const int64_t now_ms = SteadyTime().NowMs(); now_ms - asked_ms_ >= kAskEveryMs) {
    asked_ms_ = now_ms;
    if (v1::RangeState state = training_.State(kAnswerMs); state.plan().run() == RunName()) state_ = std::move(state);
  }
  if (RunIsOver()) {
    // Workers that are there still will find that out themselves.
    if (!training_.running().empty() || paused_) return absl::OkStatus();
    const uint64_t times_max = 2 * (report_.runs + 1) * kEpochs + 3;
    counts_ = std::async(std::launch::async, [this, times_max] { return training_.Counts(times_max); });
    return absl::OkStatus();
  }
  if (paused_) return absl::OkStatus();
  if (training_.running().empty()) return StartWorker();
  return done() < next_turn_ ? absl::OkStatus() : TakeTurn();
}

}  // namespace lodestone::chaos
