#include "tests/worker/client/fake_client.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/base/check.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "server/optimizer/initializer.h"
#include "server/optimizer/schedule.h"

namespace lodestone::worker {
namespace {

constexpr uint64_t kSeed = 7;

}  // namespace

FakeClient::FakeClient(uint32_t shards, uint32_t index) : shards_(shards), index_(index), versions_(shards, 0) {
  v1::RouteResponse route;
  route.set_epoch(1);
  route.add_servers()->set_address("fake:1");
  for (uint32_t s = 0; s < shards; ++s) route.add_owners(0);
  auto map = ShardMap::FromProto(route);
  LODESTONE_CHECK(map.ok());
  shard_map_ = std::make_shared<const ShardMap>(*std::move(map));
}

void FakeClient::BroadcastEvery(uint64_t pushes) {
  MutexLock lock(&mu_);
  broadcast_every_ = pushes;
}

void FakeClient::Broadcast() {
  MutexLock lock(&mu_);
  BroadcastLocked();
}

void FakeClient::FailPushes(absl::Status status) {
  MutexLock lock(&mu_);
  push_error_ = std::move(status);
}

void FakeClient::FailPulls(absl::Status status) {
  MutexLock lock(&mu_);
  pull_error_ = std::move(status);
}

void FakeClient::FailTables(absl::Status status, std::function<void()> then) {
  MutexLock lock(&mu_);
  tables_status_ = std::move(status);
  after_failed_tables_ = std::move(then);
}

void FakeClient::FailHealth(absl::Status status) {
  MutexLock lock(&mu_);
  health_ = std::move(status);
}

uint64_t FakeClient::pushes() const {
  MutexLock lock(&mu_);
  return pushes_;
}

uint64_t FakeClient::dense_pulls() const {
  MutexLock lock(&mu_);
  return dense_pulls_;
}

uint64_t FakeClient::row_pulls() const {
  MutexLock lock(&mu_);
  return row_pulls_;
}

std::vector<uint64_t> FakeClient::described_after_orders() const {
  MutexLock lock(&mu_);
  return described_after_orders_;
}

absl::Status FakeClient::FollowOrders(uint64_t orders) {
  MutexLock lock(&mu_);
  orders_ = orders;
  return absl::OkStatus();
}

void FakeClient::SetOtherServer(std::vector<v1::TableSpec> tables) {
  MutexLock lock(&mu_);
  other_server_ = std::move(tables);
}

std::vector<size_t> FakeClient::pushes_in_flight_max() const {
  MutexLock lock(&mu_);
  return pushes_in_flight_max_;
}

void FakeClient::SetPushesInFlightMax(size_t pushes) {
  MutexLock lock(&mu_);
  pushes_in_flight_max_.push_back(pushes);
}

std::vector<v1::WorkerProgress> FakeClient::reports() const {
  MutexLock lock(&mu_);
  return reports_;
}

std::vector<Clock> FakeClient::clocks() const {
  MutexLock lock(&mu_);
  return clocks_;
}

std::vector<v1::Contribution> FakeClient::contributions() const {
  MutexLock lock(&mu_);
  return contributions_;
}

void FakeClient::SetStepBatches(uint64_t batches) {
  MutexLock lock(&mu_);
  step_batches_ = batches;
}

std::vector<StepRead> FakeClient::step_reads() const {
  MutexLock lock(&mu_);
  return step_reads_;
}

std::vector<Clock> FakeClient::awaited() const {
  MutexLock lock(&mu_);
  return awaited_;
}

std::vector<float> FakeClient::DenseValues(const std::string& table) const {
  MutexLock lock(&mu_);
  return tables_.at(TableIdOf(table)).dense.values;
}

std::vector<float> FakeClient::RowValues(const std::string& table, Key key) const {
  MutexLock lock(&mu_);
  const Table& found = tables_.at(TableIdOf(table));
  const auto row = found.rows.find(key);
  if (row != found.rows.end()) return row->second.values;
  return Fresh(found, key, found.handle.dim, 0, 0).values;
}

Version FakeClient::VersionOf(ShardId shard) const {
  MutexLock lock(&mu_);
  return versions_[shard];
}

FakeClient::Vector FakeClient::Fresh(const Table& table, Key key, size_t n, uint64_t fan_in, uint64_t fan_out) const {
  Vector vector;
  vector.values.resize(n);
  vector.state.resize(table.optimizer->state_layout().FloatsFor(n));
  server::InitializeValues(table.handle.spec.initializer(), StreamSeed(kSeed, table.handle.id), key, 0, n, fan_in,
                           fan_out, vector.values.data());
  table.optimizer->InitializeState(vector.state.data(), n);
  return vector;
}

absl::StatusOr<std::vector<v1::TableSpec>> FakeClient::DescribeTables(const std::vector<std::string>& names) {
  MutexLock lock(&mu_);
  std::vector<v1::TableSpec> specs;
  for (const std::string& name : names) {
    const auto table = tables_.find(TableIdOf(name));
    if (table != tables_.end() && table->second.optimizer != nullptr) specs.push_back(table->second.handle.spec);
  }
  return specs;
}

absl::StatusOr<std::vector<std::vector<v1::TableSpec>>> FakeClient::DescribeByServer(
    const std::vector<std::string>& names) {
  LODESTONE_ASSIGN_OR_RETURN(std::vector<v1::TableSpec> own, DescribeTables(names));
  MutexLock lock(&mu_);
  described_after_orders_.push_back(orders_);
  std::vector<std::vector<v1::TableSpec>> by_server = {std::move(own)};
  by_server.push_back(other_server_.empty() ? by_server[0] : other_server_);
  return by_server;
}

void FakeClient::ChangeConsistency(const std::string& table, const v1::Consistency& consistency) {
  MutexLock lock(&mu_);
  v1::TableSpec& spec = tables_.at(TableIdOf(table)).handle.spec;
  *spec.mutable_consistency() = consistency;
  spec.clear_held();
  spec.add_held("consistency");
  ++settings_changes_;
}

uint64_t FakeClient::SettingsChanges() const {
  MutexLock lock(&mu_);
  return settings_changes_;
}

absl::Status FakeClient::TakeTablesStatus() {
  absl::Status status;
  std::function<void()> then;
  {
    MutexLock lock(&mu_);
    status = tables_status_;
    then = std::exchange(after_failed_tables_, nullptr);
    if (then) tables_status_ = absl::OkStatus();
  }
  if (then) then();
  return status;
}

absl::StatusOr<std::vector<TableHandle>> FakeClient::EnsureTables(const std::vector<v1::TableSpec>& specs) {
  if (absl::Status status = TakeTablesStatus(); !status.ok()) return status;
  MutexLock lock(&mu_);
  std::vector<TableHandle> handles;
  for (const v1::TableSpec& spec : specs) {
    Table& table = tables_[TableIdOf(spec.name())];
    if (table.optimizer == nullptr) {
      table.handle.id = TableIdOf(spec.name());
      table.handle.spec = spec;
      LODESTONE_ASSIGN_OR_RETURN(table.optimizer, server::Optimizer::Create(spec.optimizer()));
      if (spec.has_embedding()) {
        table.handle.dim = spec.embedding().dim();
      } else {
        uint64_t elements = 1;
        for (uint64_t dim : spec.dense().dims()) elements *= dim;
        const uint32_t block =
            spec.dense().block_elements() > 0 ? spec.dense().block_elements() : DefaultBlockElements(elements, shards_);
        table.handle.layout = {elements, block};
        table.block_versions.resize(table.handle.layout.block_count(), 0);
        const auto& dims = spec.dense().dims();
        table.dense = Fresh(table, 0, elements, dims[0], dims.size() > 1 ? dims[1] : 1);
      }
    }
    handles.push_back(table.handle);
  }
  return handles;
}

void FakeClient::Apply(const Table& table, const float* gradient, Vector* vector) const {
  server::Optimizer::Step step;
  step.learning_rate = server::LearningRateAt(table.handle.spec.optimizer(), 0);
  step.weight_decay = table.handle.spec.optimizer().weight_decay();
  const size_t n = vector->values.size();
  table.optimizer->Update(step, {n, 0, n}, reinterpret_cast<const uint8_t*>(gradient), vector->values.data(),
                          vector->state.data(), vector->values.data(), vector->state.data());
}

void FakeClient::PushLocked(std::span<const DenseGradient> dense, std::span<const RowGradients> rows,
                            std::vector<bool>* touched) {
  for (const DenseGradient& gradient : dense) {
    Table& table = tables_.at(gradient.table->id);
    Apply(table, gradient.values, &table.dense);
    for (BlockIndex b = 0; b < table.block_versions.size(); ++b) {
      const ShardId shard = ShardOfBlock(table.handle.id, b, shards_);
      table.block_versions[b] = versions_[shard] + 1;
      (*touched)[shard] = true;
    }
  }
  for (const RowGradients& gradient : rows) {
    Table& table = tables_.at(gradient.table->id);
    const size_t dim = table.handle.dim;
    for (size_t i = 0; i < gradient.keys.size(); ++i) {
      const auto row = table.rows.find(gradient.keys[i]);
      Vector& vector = row != table.rows.end()
                           ? row->second
                           : (table.rows[gradient.keys[i]] = Fresh(table, gradient.keys[i], dim, 0, 0));
      Apply(table, gradient.values + i * dim, &vector);
      (*touched)[ShardOfKey(gradient.keys[i], shards_)] = true;
    }
  }
}

void FakeClient::MeasureLocked(const TableHandle* table, std::vector<ShardId> shards, const ShardVersions& read,
                               PushResult* result) const {
  std::sort(shards.begin(), shards.end());
  shards.erase(std::unique(shards.begin(), shards.end()), shards.end());
  if (read.empty() || shards.empty()) return;
  double behind = 0;
  for (const ShardId shard : shards) behind += static_cast<double>(versions_[shard] - read[shard]);
  result->delays.push_back({table, {.own = behind / static_cast<double>(shards.size())}});
}

absl::Status FakeClient::Push(const StepOrigin& step, std::span<const DenseGradient> dense,
                              std::span<const RowGradients> rows, const ReadVersions& read_versions,
                              std::function<void(PushResult)> done) {
  PushResult result;
  {
    MutexLock lock(&mu_);
    result.status = push_error_;
    if (push_error_.ok()) {
      std::vector<bool> touched(shards_, false);
      PushLocked(dense, rows, &touched);
      for (const DenseGradient& gradient : dense) {
        std::vector<ShardId> shards;
        for (BlockIndex b = 0; b < gradient.table->layout.block_count(); ++b) {
          shards.push_back(ShardOfBlock(gradient.table->id, b, shards_));
        }
        MeasureLocked(gradient.table, shards, read_versions.dense, &result);
      }
      for (const RowGradients& gradient : rows) {
        std::vector<ShardId> shards;
        for (const Key key : gradient.keys) shards.push_back(ShardOfKey(key, shards_));
        MeasureLocked(gradient.table, shards, read_versions.rows, &result);
      }
      for (ShardId s = 0; s < shards_; ++s) {
        versions_[s] += touched[s];
        if (touched[s]) result.applied.push_back({s, versions_[s]});
      }
      ++pushes_;
      clocks_.push_back(step.clock);
      if (step.contribution.has_value()) contributions_.push_back(*step.contribution);
      if (step.range.incarnation != 0) range_steps_.emplace_back(step.range.incarnation, step.sequence);
      if (broadcast_every_ > 0 && pushes_ % broadcast_every_ == 0) BroadcastLocked();
    }
  }
  done(result);
  return absl::OkStatus();
}

absl::Status FakeClient::PullLocked(const std::vector<DensePull>& dense, const std::vector<RowPull>& rows,
                                    ShardVersions* versions) {
  LODESTONE_RETURN_IF_ERROR(pull_error_);
  versions->assign(shards_, 0);
  if (!dense.empty()) ++dense_pulls_;
  if (!rows.empty()) ++row_pulls_;
  for (const DensePull& pull : dense) {
    const Table& table = tables_.at(pull.table->id);
    std::copy(table.dense.values.begin(), table.dense.values.end(), pull.dst);
    for (BlockIndex b = 0; b < table.block_versions.size(); ++b) {
      const ShardId shard = ShardOfBlock(table.handle.id, b, shards_);
      (*versions)[shard] = versions_[shard];
    }
  }
  for (const RowPull& pull : rows) {
    const Table& table = tables_.at(pull.table->id);
    const size_t dim = table.handle.dim;
    for (size_t i = 0; i < pull.keys.size(); ++i) {
      const Key key = pull.keys[i];
      const auto row = table.rows.find(key);
      const std::vector<float> values =
          row != table.rows.end() ? row->second.values : Fresh(table, key, dim, 0, 0).values;
      std::copy(values.begin(), values.end(), pull.dst + i * dim);
      const ShardId shard = ShardOfKey(key, shards_);
      (*versions)[shard] = versions_[shard];
    }
  }
  return absl::OkStatus();
}

void FakeClient::Pull(std::vector<DensePull> dense, std::vector<RowPull> rows,
                      std::function<void(absl::Status, ShardVersions)> done) {
  ShardVersions versions;
  absl::Status status;
  {
    MutexLock lock(&mu_);
    status = PullLocked(dense, rows, &versions);
  }
  done(status, std::move(versions));
}

void FakeClient::PullSteps(const StepRead& read, std::vector<DensePull> dense, std::vector<RowPull> rows,
                           std::function<void(absl::Status, ShardVersions, uint64_t)> done) {
  ShardVersions versions;
  absl::Status status;
  uint64_t steps = 0;
  {
    MutexLock lock(&mu_);
    step_reads_.push_back(read);
    status = PullLocked(dense, rows, &versions);
    steps = contributions_.size() / step_batches_;
  }
  done(status, std::move(versions), steps);
}

absl::StatusOr<ShardVersions> FakeClient::PullNow(std::vector<DensePull> dense, std::vector<RowPull> rows) {
  ShardVersions versions;
  MutexLock lock(&mu_);
  LODESTONE_RETURN_IF_ERROR(PullLocked(dense, rows, &versions));
  return versions;
}

absl::Status FakeClient::PushPull(const StepOrigin& step, std::span<const DenseGradient> dense,
                                  std::span<const RowGradients> rows, const ReadVersions& read_versions,
                                  std::vector<DensePull> dense_pulls, std::vector<RowPull> row_pulls,
                                  std::function<void(PushResult, ShardVersions)> done) {
  return Push(step, dense, rows, read_versions, [&](PushResult result) {
    if (!result.status.ok()) return done(result, {});
    {
      MutexLock lock(&mu_);
      ++push_pulls_;
    }
    Pull(std::move(dense_pulls), std::move(row_pulls), [&](absl::Status status, ShardVersions versions) {
      result.status = std::move(status);
      done(result, std::move(versions));
    });
  });
}

absl::StatusOr<SubscriptionId> FakeClient::Subscribe(std::vector<const TableHandle*> tables,
                                                     SubscriptionListener listener) {
  MutexLock lock(&mu_);
  Subscription subscription{
      ++last_subscription_, {}, std::move(listener.on_block), std::move(listener.on_shard), versions_};
  for (const TableHandle* table : tables) subscription.tables.push_back(table->id);
  SendLocked(/*anchor=*/true, &subscription);
  subscriptions_.push_back(std::move(subscription));
  return last_subscription_;
}

size_t FakeClient::subscriptions() const {
  MutexLock lock(&mu_);
  return subscriptions_.size();
}

uint64_t FakeClient::push_pulls() const {
  MutexLock lock(&mu_);
  return push_pulls_;
}

void FakeClient::Unsubscribe(SubscriptionId subscription) {
  MutexLock lock(&mu_);
  std::erase_if(subscriptions_, [subscription](const Subscription& of) { return of.id == subscription; });
}

void FakeClient::UnsubscribeAll() {
  MutexLock lock(&mu_);
  subscriptions_.clear();
}

void FakeClient::SendLocked(bool anchor, Subscription* subscription) {
  std::vector<bool> changed(shards_, false);
  for (TableId id : subscription->tables) {
    const Table& table = tables_.at(id);
    for (BlockIndex b = 0; b < table.block_versions.size(); ++b) {
      const ShardId shard = ShardOfBlock(id, b, shards_);
      if (!anchor && table.block_versions[b] <= subscription->sent[shard]) continue;
      const float* const values = table.dense.values.data() + uint64_t{b} * table.handle.layout.block_elements;
      const size_t count = table.handle.layout.ElementsOf(b);
      const ByteView bytes(reinterpret_cast<const uint8_t*>(values), count * sizeof(float));
      subscription->on_block({id, b, shard, table.block_versions[b], bytes, count});
      changed[shard] = true;
    }
  }
  for (ShardId s = 0; s < shards_; ++s) {
    if (!changed[s]) continue;
    subscription->sent[s] = versions_[s];
    subscription->on_shard(s, versions_[s]);
  }
}

void FakeClient::BroadcastLocked() {
  for (Subscription& subscription : subscriptions_) SendLocked(/*anchor=*/false, &subscription);
}

void FakeClient::ReportProgress(const v1::WorkerProgress& progress) {
  MutexLock lock(&mu_);
  reports_.push_back(progress);
}

void FakeClient::OnAwaitClock(std::vector<std::string> untrained, std::function<void()> at) {
  MutexLock lock(&mu_);
  untrained_ = std::move(untrained);
  at_await_ = std::move(at);
}

void FakeClient::PushByAnother() {
  MutexLock lock(&mu_);
  for (auto& [id, table] : tables_) {
    if (table.block_versions.empty()) continue;
    table.dense.values[0] += 1;
    table.block_versions[0] = ++versions_[ShardOfBlock(id, 0, shards_)];
  }
}

absl::StatusOr<std::vector<std::string>> FakeClient::AwaitClock(Clock clock, const std::function<bool()>& stops) {
  std::function<void()> at;
  {
    MutexLock lock(&mu_);
    awaited_.push_back(clock);
    at = at_await_;
  }
  if (at) at();
  if (stops && stops()) return absl::CancelledError("stopped while it waited for the other workers");
  MutexLock lock(&mu_);
  return untrained_;
}

void FakeClient::OnAskClock(std::function<absl::StatusOr<v1::AwaitClockResponse>(const v1::AwaitClockRequest&)> answer,
                            std::function<void(Clock)> told) {
  MutexLock lock(&mu_);
  ask_clock_ = std::move(answer);
  told_clock_ = std::move(told);
}

absl::StatusOr<v1::AwaitClockResponse> FakeClient::AskClock(v1::AwaitClockRequest request) {
  std::function<absl::StatusOr<v1::AwaitClockResponse>(const v1::AwaitClockRequest&)> answer;
  {
    MutexLock lock(&mu_);
    answer = ask_clock_;
  }
  request.set_incarnation(incarnation());
  if (answer != nullptr) return answer(request);
  v1::AwaitClockResponse response;
  response.set_reached(true);
  response.set_lowest(std::numeric_limits<Clock>::max());
  response.set_newest(0);
  return response;
}

void FakeClient::ReportClock(Clock clock) {
  std::function<void(Clock)> told;
  {
    MutexLock lock(&mu_);
    told = told_clock_;
  }
  if (told != nullptr) told(clock);
}

void FakeClient::OnValidate(std::function<absl::StatusOr<v1::ValidateResponse>(const v1::ValidateRequest&)> answer) {
  MutexLock lock(&mu_);
  validate_ = std::move(answer);
}

void FakeClient::StopEarly() {
  MutexLock lock(&mu_);
  stops_early_ = true;
}

std::vector<v1::ValidateRequest> FakeClient::validations() const {
  MutexLock lock(&mu_);
  return validations_;
}

std::vector<std::pair<std::string, std::string>> FakeClient::checkpoints() const {
  MutexLock lock(&mu_);
  return checkpoints_;
}

absl::StatusOr<v1::ValidateResponse> FakeClient::Validate(v1::ValidateRequest request) {
  std::function<absl::StatusOr<v1::ValidateResponse>(const v1::ValidateRequest&)> answer;
  {
    MutexLock lock(&mu_);
    validations_.push_back(request);
    answer = validate_;
  }
  absl::StatusOr<v1::ValidateResponse> response = v1::ValidateResponse();
  if (answer != nullptr) response = answer(request);
  if (response.ok() && !response->state().stopped().empty()) StopEarly();
  return response;
}

void FakeClient::OnLeaseRanges(
    std::function<absl::StatusOr<v1::LeaseRangesResponse>(const v1::LeaseRangesRequest&)> answer) {
  MutexLock lock(&mu_);
  lease_ = std::move(answer);
}

std::vector<std::pair<Incarnation, Sequence>> FakeClient::range_steps() const {
  MutexLock lock(&mu_);
  return range_steps_;
}

absl::StatusOr<v1::LeaseRangesResponse> FakeClient::LeaseRanges(v1::LeaseRangesRequest request) {
  std::function<absl::StatusOr<v1::LeaseRangesResponse>(const v1::LeaseRangesRequest&)> answer;
  {
    MutexLock lock(&mu_);
    answer = lease_;
  }
  request.set_incarnation(incarnation());
  if (answer != nullptr) return answer(request);
  v1::LeaseRangesResponse over;
  over.set_over(true);
  return over;
}

bool FakeClient::StopsEarly() const {
  MutexLock lock(&mu_);
  return stops_early_;
}

absl::Status FakeClient::WriteCheckpoint(const std::string& name, const std::string& removes) {
  MutexLock lock(&mu_);
  checkpoints_.emplace_back(name, removes);
  return absl::OkStatus();
}

absl::Status FakeClient::Health() const {
  MutexLock lock(&mu_);
  return health_;
}

}  // namespace lodestone::worker
