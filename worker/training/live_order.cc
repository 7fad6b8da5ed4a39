#include "worker/training/live_order.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/config/table_check.h"
#include "common/telemetry/log.h"
#include "worker/client/client.h"
#include "worker/model/step_order.h"

namespace lodestone::worker {
namespace {

bool HasStepsIn(const v1::Consistency& order) { return order.has_sync() || order.has_tokens(); }

uint32_t StalenessOf(const v1::Consistency& order) {
  return order.has_bounded() ? order.bounded().staleness() : ClockGate::kUnbounded;
}

}  // namespace

LiveOrder::LiveOrder(Client* client, const std::vector<v1::TableSpec>& tables, ClockGate::Options gate)
    : client_(client), gate_options_(std::move(gate)), order_(StepOrderOf(tables)) {
  for (const v1::TableSpec& table : tables) names_.push_back(table.name());
}

std::string LiveOrder::InWords() const {
  std::string words = worker::InWords(order_);
  return words.empty() && gate() != nullptr ? "async" : words;
}

std::shared_ptr<ClockGate> LiveOrder::gate() const {
  MutexLock lock(&mu_);
  return gate_;
}

absl::Status LiveOrder::Start() { return order_.has_bounded() ? Use(order_) : absl::OkStatus(); }

absl::Status LiveOrder::Follow() {
  const uint64_t changes = client_->SettingsChanges();
  if (changes == changes_) return absl::OkStatus();
  const absl::StatusOr<std::vector<v1::TableSpec>> tables = client_->DescribeTables(names_);
  if (!tables.ok()) {
    LODESTONE_LOG(WARN, "trainer", "what the settings of the tables are now is not known yet error={}",
                  tables.status().ToString());
    return absl::OkStatus();
  }
  changes_ = changes;
  tells_versions_ = std::any_of(tables->begin(), tables->end(), [](const v1::TableSpec& table) {
    return table.consistency().async().rate() == v1::Consistency::Async::BY_DELAY;
  });
  const v1::Consistency order = StepOrderOf(*tables);
  if (Differences(order, order_).empty()) return absl::OkStatus();
  if (HasStepsIn(order) || HasSteps()) {
    LODESTONE_LOG(WARN, "trainer",
                  "the tables' consistency is another one by now, which a start of this worker would take up "
                  "is=`{}` has=`{}`",
                  worker::InWords(order), worker::InWords(order_));
    return absl::OkStatus();
  }
  LODESTONE_RETURN_IF_ERROR(Use(order));
  LODESTONE_LOG(INFO, "trainer", "another order of steps consistency=`{}`", InWords());
  return absl::OkStatus();
}

absl::Status LiveOrder::Use(const v1::Consistency& order) {
  order_ = order;
  if (const std::shared_ptr<ClockGate> gate = this->gate(); gate != nullptr) {
    gate->SetStaleness(StalenessOf(order));
    return absl::OkStatus();
  }
  ClockGate::Options options = gate_options_;
  options.staleness = StalenessOf(order);
  auto gate = std::make_shared<ClockGate>(client_, std::move(options));
  LODESTONE_RETURN_IF_ERROR(gate->Start());
  MutexLock lock(&mu_);
  gate_ = std::move(gate);
  return absl::OkStatus();
}

}  // namespace lodestone::worker
