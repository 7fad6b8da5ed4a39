#include "worker/training/live_order.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/config/table_check.h"
#include "common/telemetry/log.h"
#include "worker/client/client.h"
#include "worker/model/step_order.h"

namespace lodestone::worker {
namespace {

constexpr int64_t kAskSettingsEveryMs = 1'000;  // While it waits, and after an error.

uint32_t StalenessOf(const v1::Consistency& order) {
  return order.has_bounded() ? order.bounded().staleness() : ClockGate::kUnbounded;
}

}  // namespace

LiveOrder::LiveOrder(Client* client, const std::vector<v1::TableSpec>& tables, uint64_t steps, ClockGate::Options gate)
    : client_(client), gate_options_(std::move(gate)), first_(StepOrderOf(tables)), now_(first_), step_(steps) {
  for (const v1::TableSpec& table : tables) names_.push_back(table.name());
}

LiveOrder::~LiveOrder() { Stop(); }

v1::ConsistencyProgress LiveOrder::Observed() const {
  v1::ConsistencyProgress observed;
  MutexLock lock(&mu_);
  if (gate_ != nullptr) observed = gate_->Observed();
  observed.set_waited_seconds(observed.waited_seconds() + waited_seconds_);
  const std::string words = InWords(now_);
  observed.set_kind(words.empty() && gate_ != nullptr ? "async" : words);
  return observed;
}

std::shared_ptr<ClockGate> LiveOrder::gate() const {
  MutexLock lock(&mu_);
  return gate_;
}

absl::Status LiveOrder::Start() {
  if (HasSteps()) return absl::OkStatus();
  if (first_.has_bounded()) LODESTONE_RETURN_IF_ERROR(StartGate(StalenessOf(first_)));
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

absl::Status LiveOrder::BeginStep(uint64_t step) {
  const bool news = client_->SettingsChanges() != changes_.load(std::memory_order_relaxed);
  MutexLock lock(&mu_);
  step_ = step;
  if (news && !asks_) {
    asks_ = true;
    changed_.NotifyAll();
  }
  return error_;
}

absl::StatusOr<std::optional<Clock>> LiveOrder::Await() {
  std::shared_ptr<ClockGate> gate;
  {
    MutexLock lock(&mu_);
    gate = gate_;
    if (gate == nullptr) return Clock{0};
    ++waiting_;
  }
  while (true) {
    const absl::StatusOr<Clock> clock = gate->Await();
    MutexLock lock(&mu_);
    if (clock.ok() && *clock == 0 && gate_ != gate) {  // Another one has taken its place.
      gate = gate_;
      continue;
    }
    --waiting_;
    if (!clock.ok()) return clock.status();
    return *clock == 0 ? std::nullopt : std::optional<Clock>(*clock);
  }
}

void LiveOrder::SetIdle(bool idle) {
  MutexLock lock(&mu_);
  if (idle_ == idle) return;
  idle_ = idle;
  waiting_ += idle ? 1 : -1;
  if (gate_ != nullptr) gate_->SetIdle(idle);
}

void LiveOrder::Stop() {
  std::shared_ptr<ClockGate> gate;
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    changed_.NotifyAll();
    gate = gate_;
  }
  if (gate != nullptr) gate->Stop();
  if (!thread_.joinable()) return;
  thread_.join();
  gate = this->gate();  // It may have been begun meanwhile.
  if (gate != nullptr) gate->Stop();
}

void LiveOrder::Run() {
  bool failed = false;
  std::string told;  // The last error in the log.
  while (true) {
    {
      MutexLock lock(&mu_);
      // After an error, and while it waits, it asks once in a while.
      bool due = false;
      while (!stopped_ && !due && (failed || !asks_))
        due = !changed_.WaitForMs(&mu_, kAskSettingsEveryMs) && (failed || waiting_ > 0);
      if (stopped_) return;
      asks_ = false;
    }
    const absl::Status followed = Follow();
    failed = !followed.ok();
    if (failed && followed.ToString() != std::exchange(told, followed.ToString())) {
      LODESTONE_LOG(WARN, "trainer", "what the settings of the tables are now is not known yet error={}",
                    followed.ToString());
    }
  }
}

absl::Status LiveOrder::Follow() {
  const uint64_t changes = client_->SettingsChanges();
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<v1::TableSpec> tables, client_->DescribeTables(names_));
  if (tables.size() < names_.size()) {  // Those that were asked own nothing any more.
    return absl::UnavailableError(absl::StrCat("the servers know ", tables.size(), " of ", names_.size(), " tables"));
  }
  tells_versions_ = std::any_of(tables.begin(), tables.end(), [](const v1::TableSpec& table) {
    return table.consistency().async().rate() == v1::Consistency::Async::BY_DELAY;
  });
  const v1::Consistency order = StepOrderOf(tables);
  v1::Consistency now;
  {
    MutexLock lock(&mu_);
    now = now_;
  }
  if (order.has_sync() || order.has_tokens()) {
    LODESTONE_LOG(WARN, "trainer",
                  "the tables have steps by now, and this worker has not paused for that: start it again is=`{}`",
                  InWords(order));
  } else if (!Differences(order, now).empty()) {
    LODESTONE_RETURN_IF_ERROR(Use(order));
  }
  changes_ = changes;
  return absl::OkStatus();
}

absl::Status LiveOrder::Use(const v1::Consistency& order) {
  bool begins = false;  // It was not bounded before.
  {
    MutexLock lock(&mu_);
    begins = order.has_bounded() && !now_.has_bounded();
    if (!begins) {
      now_ = order;
      if (gate_ != nullptr) gate_->SetStaleness(StalenessOf(order));
    }
  }
  if (begins) {
    const absl::Status started = StartGate(StalenessOf(order));
    MutexLock lock(&mu_);
    error_ = started;
    if (!started.ok()) return started;
    now_ = order;
  }
  LODESTONE_LOG(INFO, "trainer", "another order of steps consistency=`{}`",
                order.has_bounded() ? InWords(order) : "async");
  return absl::OkStatus();
}

absl::Status LiveOrder::StartGate(uint32_t staleness) {
  ClockGate::Options options = gate_options_;
  options.staleness = staleness;
  std::shared_ptr<ClockGate> former = gate();
  {
    // Others know of steps that were taken without a gate, or without a bound.
    MutexLock lock(&mu_);
    options.reached = std::max<Clock>(step_, former == nullptr ? 0 : former->begun());
  }
  auto gate = std::make_shared<ClockGate>(client_, std::move(options));
  LODESTONE_RETURN_IF_ERROR(gate->Start());
  {
    MutexLock lock(&mu_);
    if (stopped_) return absl::OkStatus();  // Stop has the former gate.
    if (former != nullptr) waited_seconds_ += former->Observed().waited_seconds();
    if (idle_) gate->SetIdle(true);
    // Steps went on while the gate was started, and no clock may be given twice.
    gate->MoveUp(std::max<Clock>(step_, former == nullptr ? 0 : former->Close()));
    gate_ = std::move(gate);
  }
  if (former != nullptr) former->Stop();
  return absl::OkStatus();
}

}  // namespace lodestone::worker
