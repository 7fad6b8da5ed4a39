#include "tests/chaos/counting_workers.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/client/cluster_reader.h"

namespace lodestone::chaos {
namespace {

constexpr double kRate = 0.5;
constexpr uint32_t kPatienceMs = 90'000;  // Of the client that reads the weights.

// What the weight of a sample with label 1 is after so many steps, each with 1 / kBatch of its gradient.
std::vector<double> WeightsAfter(uint64_t steps) {
  std::vector<double> weights = {0};
  for (uint64_t i = 0; i < steps; ++i) {
    weights.push_back(weights.back() + kRate / CountingWorkers::kBatch / (1 + std::exp(weights.back())));
  }
  return weights;
}

// The number of steps after which the weight is `weight`; -1: none.
int64_t StepsOf(const std::vector<double>& after, double weight) {
  const auto above = std::lower_bound(after.begin(), after.end(), weight);
  for (auto at = above == after.begin() ? above : above - 1; at != after.end() && at <= above; ++at) {
    const double step = at + 1 != after.end() ? at[1] - at[0] : at[0] - at[-1];
    if (std::abs(*at - weight) < step / 3) return at - after.begin();
  }
  return -1;
}

}  // namespace

CountingWorkers::CountingWorkers(const PsCluster* cluster, Options options)
    : cluster_(cluster),
      options_(std::move(options)),
      config_file_(absl::StrCat(options_.folder, "/worker.yaml")),
      log_(absl::StrCat(options_.folder, "/workers.log")) {
  std::ofstream samples(absl::StrCat(options_.folder, "/samples"));
  for (uint64_t i = 0; i < kSamples; ++i) samples << i % 2 << " " << i << ":1\n";
  const v1::Config& config = cluster_->config();
  std::ofstream(config_file_) << "cluster: {name: " << config.cluster().name() << ", servers: " << cluster_->servers()
                              << ", workers: 1, seed: 3}\n"
                              << "coordinator: {address: '" << config.coordinator().address()
                              << "', lease_ms: " << config.coordinator().lease_ms() << "}\n"
                              << "worker: {call_timeout_ms: 2000}\n"
                              << "model: {type: linear, optimizer: {sgd: {}, learning_rate: " << kRate << "},\n"
                              << "        dense: {optimizer: {sgd: {}, learning_rate: 1.0e-12}}}\n"
                              << "data: {format: libsvm, train: " << options_.folder << "/samples}\n"
                              << "train: {epochs: " << options_.epochs << ", batch_size: " << kBatch
                              << ", sharing: ranges, range_batches: 8, bias_from_labels: false}\n";
}

absl::Status CountingWorkers::Start(const std::vector<std::string>& sets) {
  std::vector<std::string> argv = {options_.worker_binary, "--config", config_file_};
  for (const auto* each : {&options_.sets, &sets}) {
    for (const std::string& set : *each) argv.insert(argv.end(), {"--set", set});
  }
  LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<psctl::Child> worker,
                             psctl::Child::Start(absl::StrCat("worker ", ++started_), argv));
  running_.push_back(std::move(worker));
  return absl::OkStatus();
}

std::vector<CountingWorkers::End> CountingWorkers::Pump() {
  std::vector<End> ended;
  std::erase_if(running_, [&](const std::unique_ptr<psctl::Child>& worker) {
    const auto note = [&](absl::string_view line) { log_ << worker->name() << ": " << line << "\n"; };
    worker->ReadOutput(note);
    if (!worker->Reap(note)) return false;
    log_ << "chaos: " << worker->Outcome() << std::endl;
    ended.push_back({worker->Outcome(), worker->exit_code(), worker->signal()});
    return true;
  });
  return ended;
}

v1::RangeState CountingWorkers::State(int timeout_ms) const {
  if (!cluster_->Listens(0)) return {};
  const auto status = cluster_->StatusOf(0, timeout_ms);
  return status.ok() ? status->cluster().ranges() : v1::RangeState();
}

uint64_t CountingWorkers::Done(const v1::RangeState& state) {
  uint64_t done = state.batches_closed();
  for (const v1::RangeLease& range : state.open()) done += range.done();
  return done;
}

absl::StatusOr<std::map<int64_t, uint64_t>> CountingWorkers::Counts(uint64_t times_max) const {
  v1::Config config = cluster_->config();
  config.mutable_coordinator()->set_join_timeout_ms(kPatienceMs);
  config.mutable_worker()->set_retry_timeout_ms(kPatienceMs);
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<worker::ClusterReader> reader,
                             worker::ClusterReader::Observe(config));
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<v1::TableSpec> specs, reader->DescribeTables({"linear"}));
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<worker::TableHandle> tables, reader->EnsureTables(specs));
  if (tables.size() != 1) return absl::NotFoundError("there is no table `linear`");
  std::vector<Key> keys(kSamples);
  for (uint64_t i = 0; i < kSamples; ++i) keys[i] = i;
  std::vector<float> weights(kSamples);
  LODESTONE_RETURN_IF_ERROR(reader->PullNow({}, {{&tables.front(), keys, weights.data()}}).status());
  const std::vector<double> after = WeightsAfter(times_max);
  std::map<int64_t, uint64_t> counts;
  for (uint64_t i = 0; i < kSamples; ++i) ++counts[StepsOf(after, i % 2 == 1 ? weights[i] : -weights[i])];
  return counts;
}

}  // namespace lodestone::chaos
