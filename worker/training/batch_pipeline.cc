#include "worker/training/batch_pipeline.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/telemetry/histogram.h"

namespace lodestone::worker {

BatchPipeline::BatchPipeline(Client* client, const Dataset* data, std::vector<const TableHandle*> row_tables,
                             Source source, const Options& options)
    : client_(client),
      data_(data),
      row_tables_(std::move(row_tables)),
      source_(std::move(source)),
      ahead_max_(options.ahead),
      held_max_(options.held_max),
      read_ahead_(options.read_ahead),
      groups_(options.groups),
      slots_(size_t{options.ahead} + options.held_max + options.read_ahead),
      indexer_(options.groups),
      ahead_(options.ahead - options.less_ahead) {
  kernels::Backend* const backend = options.backend;
  for (Slot& slot : slots_) {
    for (size_t t = 0; t < row_tables_.size(); ++t) {
      slot.item.rows.emplace_back(backend, kernels::Memory::kHost);
    }
    if (backend->on_host()) continue;
    slot.item.device = std::make_unique<DeviceBatch>(backend, options.ordered, groups_.count(), row_tables_.size());
  }
  thread_ = std::thread([this] { Run(); });
}

BatchPipeline::~BatchPipeline() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
    room_.NotifyOne();
  }
  thread_.join();
  MutexLock lock(&mu_);
  consumer_waits_ = true;
  for (const Slot& slot : slots_) {
    while (slot.state == Slot::State::kPulling) filled_.Wait(&mu_);
  }
}

bool BatchPipeline::ReadyLocked() const {
  return (ended_ && taken_ == prepared_) || slots_[taken_ % slots_.size()].state == Slot::State::kFilled;
}

bool BatchPipeline::HasRoom() const {
  return stop_ || prepared_ < std::max(taken_ + asked_, released_ + 1) + ahead_ + read_ahead_;
}

bool BatchPipeline::TakeWake() {
  if (!thread_waits_ || !HasRoom()) return false;
  thread_waits_ = false;
  return true;
}

bool BatchPipeline::Ready() {
  MutexLock lock(&mu_);
  return ReadyLocked();
}

absl::StatusOr<const BatchPipeline::Item*> BatchPipeline::Next() {
  waits_ = {};
  const int64_t start_ns = NowNs();
  bool wakes = false;
  {
    MutexLock lock(&mu_);
    LODESTONE_CHECK(taken_ - released_ < held_max_);
    asked_ = !ReadyLocked();
    wakes = TakeWake();
  }
  if (wakes) room_.NotifyOne();
  PullDue();
  const Item* item = nullptr;
  {
    MutexLock lock(&mu_);
    Slot& slot = slots_[taken_ % slots_.size()];
    if (asked_) {
      consumer_waits_ = true;
      while (!ReadyLocked()) filled_.Wait(&mu_);
      consumer_waits_ = false;
      asked_ = false;
      // The beginning of the pull does not wake it.
      const int64_t read_ns = std::max(start_ns, slot.pull_ns);
      waits_ = {read_ns - start_ns, NowNs() - read_ns};
    }
    if (ended_ && taken_ == prepared_) {
      if (!error_.ok()) return error_;
      return nullptr;
    }
    if (!slot.status.ok()) return slot.status;
    ++taken_;
    wakes = TakeWake();
    item = &slot.item;
  }
  if (wakes) room_.NotifyOne();
  PullDue();
  return item;
}

void BatchPipeline::Release() {
  bool wakes = false;
  {
    MutexLock lock(&mu_);
    LODESTONE_CHECK(released_ < taken_);
    slots_[released_++ % slots_.size()].state = Slot::State::kFree;
    wakes = TakeWake();
  }
  if (wakes) room_.NotifyOne();
  PullDue();
}

void BatchPipeline::SetAhead(uint32_t ahead) {
  LODESTONE_CHECK(ahead <= ahead_max_);
  bool wakes = false;
  {
    MutexLock lock(&mu_);
    ahead_ = ahead;
    wakes = TakeWake();
  }
  if (wakes) room_.NotifyOne();
  PullDue();
}

void BatchPipeline::PullDue() {
  while (true) {
    Slot* slot = nullptr;
    {
      MutexLock lock(&mu_);
      if (stop_ || pulled_ == prepared_ || pulled_ >= std::max(taken_ + asked_, released_ + 1) + ahead_) return;
      slot = &slots_[pulled_++ % slots_.size()];
      slot->state = Slot::State::kPulling;
      slot->pull_ns = NowNs();
    }
    Pull(slot);
  }
}

void BatchPipeline::Run() {
  for (uint64_t n = 0;; ++n) {
    Slot& slot = slots_[n % slots_.size()];
    {
      MutexLock lock(&mu_);
      while (!HasRoom()) {
        thread_waits_ = true;
        room_.Wait(&mu_);
      }
      thread_waits_ = false;
      if (stop_) return;
    }
    bool end = false;
    const absl::Status status = Prepare(&slot, &end);
    {
      MutexLock lock(&mu_);
      if (end || !status.ok()) {
        ended_ = true;
        error_ = status;
        if (consumer_waits_) filled_.NotifyOne();
        return;
      }
      ++prepared_;
      slot.status = absl::OkStatus();
      slot.state = Slot::State::kPrepared;
    }
    PullDue();
  }
}

absl::Status BatchPipeline::Prepare(Slot* slot, bool* end) {
  Item& item = slot->item;
  item.assignment.indices.clear();
  LODESTONE_ASSIGN_OR_RETURN(const bool more, source_(&item.assignment));
  if (!more) {
    *end = true;
    return absl::OkStatus();
  }
  LODESTONE_RETURN_IF_ERROR(indexer_.Read(*data_, item.assignment.indices, &item.keyed));
  item.versions.clear();
  std::vector<size_t> row_floats;
  for (size_t t = 0; t < row_tables_.size(); ++t) {
    row_floats.push_back(item.keyed.KeysOf(groups_.OfTable(t)).size() * row_tables_[t]->dim);
    const float* const rows = item.rows[t].Resize(row_floats[t]);
    if (rows == nullptr && row_floats[t] > 0) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory for a batch's ", row_floats[t] * sizeof(float),
                                                       " bytes of rows that the device could copy from"));
    }
  }
  if (item.device != nullptr) item.device->Pack(item.keyed, row_floats);
  return absl::OkStatus();
}

std::vector<RowPull> BatchPipeline::PullsOf(Slot* slot) {
  std::vector<RowPull> pulls;
  for (size_t t = 0; slot->item.keyed.has_keys() && t < row_tables_.size(); ++t) {
    pulls.push_back({row_tables_[t], slot->item.keyed.KeysOf(groups_.OfTable(t)), slot->item.rows[t].data()});
  }
  return pulls;
}

void BatchPipeline::TakeRows(Slot* slot, const absl::Status& status, ShardVersions versions, uint64_t steps) {
  slot->item.versions = std::move(versions);
  slot->item.steps = steps;
  if (status.ok() && slot->item.device != nullptr) slot->item.device->Upload(slot->item.rows);
  MutexLock lock(&mu_);
  slot->status = Annotate(status, "pulling a batch's rows");
  slot->state = Slot::State::kFilled;
  if (consumer_waits_) filled_.NotifyOne();  // With the lock: without it, the pipeline may be gone.
}

std::optional<BatchPipeline::RowsRead> BatchPipeline::TakeNextRead() {
  Slot* slot = nullptr;
  {
    MutexLock lock(&mu_);
    if (stop_ || pulled_ == prepared_ || pulled_ != taken_) return std::nullopt;
    slot = &slots_[pulled_ % slots_.size()];
    if (!slot->item.keyed.has_keys() || row_tables_.empty()) return std::nullopt;
    ++pulled_;
    slot->state = Slot::State::kPulling;
    slot->pull_ns = NowNs();
  }
  return RowsRead{PullsOf(slot), [this, slot](const absl::Status& status, ShardVersions versions) {
                    TakeRows(slot, status, std::move(versions), 0);
                  }};
}

void BatchPipeline::Pull(Slot* slot) {
  std::vector<RowPull> pulls = PullsOf(slot);
  if (pulls.empty()) return TakeRows(slot, absl::OkStatus(), {}, 0);
  const std::optional<v1::Contribution>& contribution = slot->item.assignment.contribution;
  client_->PullSteps({.steps_min = contribution.has_value() ? contribution->step() : 0}, {}, std::move(pulls),
                     [this, slot](const absl::Status& status, ShardVersions versions, uint64_t steps) {
                       TakeRows(slot, status, std::move(versions), steps);
                     });
}

}  // namespace lodestone::worker
