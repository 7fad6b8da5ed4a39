#include "server/store/step_waits.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "server/shard/shard.h"
#include "server/store/request_view.h"

namespace lodestone::server {
namespace {

absl::Status Ends() { return absl::UnavailableError("this ps ends"); }

}  // namespace

std::string StepWaits::TextOf(const Wait& wait) {
  return absl::StrCat(wait.steps, " steps of table `", wait.name, "` on shard ", wait.shard, ", where step ",
                      wait.collected, " has ", wait.progress);
}

void StepWaits::NoteProgress(const StepCollector& collector, Wait* wait) {
  wait->collected = collector.steps();
  wait->progress = collector.Progress();
  wait->missing = collector.Missing();
}

void StepWaits::Await(ShardId shard, const Table& table, uint64_t steps, const StepCollector& collector, Done done) {
  Wait wait{.shard = shard,
            .table = table.id(),
            .name = table.name(),
            .steps = steps,
            .since_ms = time_->NowMs(),
            .done = std::move(done)};
  NoteProgress(collector, &wait);
  {
    MutexLock lock(&mu_);
    if (!stopped_) {
      const Id id = ++last_id_;
      wait.limit = timer_->After(limits::kStepWaitMaxMs, [this, id] { Expire(id); });
      waits_.emplace(id, std::move(wait));
      count_.store(waits_.size(), std::memory_order_relaxed);
      return;
    }
  }
  wait.done(Ends());
}

void StepWaits::Expire(Id id) {
  Wait wait;
  {
    MutexLock lock(&mu_);
    const auto found = waits_.find(id);
    if (found == waits_.end()) return;
    wait = std::move(found->second);
    waits_.erase(found);
    count_.store(waits_.size(), std::memory_order_relaxed);
  }
  wait.done(absl::UnavailableError(
      absl::StrCat("the pull has waited ", limits::kStepWaitMaxMs, " ms for ", TextOf(wait), "; send it again")));
}

void StepWaits::End(const std::function<bool(Wait*)>& ends, const absl::Status& status) {
  if (count_.load(std::memory_order_relaxed) == 0) return;
  std::vector<Wait> ended;
  {
    MutexLock lock(&mu_);
    for (auto wait = waits_.begin(); wait != waits_.end();) {
      if (!ends(&wait->second)) {
        ++wait;
        continue;
      }
      ended.push_back(std::move(wait->second));
      wait = waits_.erase(wait);
    }
    count_.store(waits_.size(), std::memory_order_relaxed);
  }
  for (const Wait& wait : ended) {
    timer_->Cancel(wait.limit);
    wait.done(status);
  }
}

void StepWaits::Tell(const Shard& shard) {
  End(
      [&](Wait* wait) {
        if (wait->shard != shard.id()) return false;
        const StepCollector* const collector = shard.steps().Of(wait->table);
        if (collector == nullptr || !collector->is_sync()) return true;
        if (collector->steps() >= wait->steps || collector->complete()) return true;
        NoteProgress(*collector, wait);
        return false;
      },
      absl::OkStatus());
}

void StepWaits::Lose(ShardId shard) {
  End([shard](Wait* wait) { return wait->shard == shard; }, NotOwned(shard));
}

void StepWaits::Fail(const absl::Status& status) {
  End([](Wait*) { return true; }, status);
}

void StepWaits::Stop() {
  {
    MutexLock lock(&mu_);
    stopped_ = true;
  }
  Fail(Ends());
}

void StepWaits::FillStatus(v1::StatusResponse* status) const {
  struct Group {
    const Wait* oldest = nullptr;
    size_t pulls = 0;
    std::set<ShardId> shards;
  };
  const int64_t now_ms = time_->NowMs();
  MutexLock lock(&mu_);
  std::map<std::tuple<std::string, uint64_t, uint64_t, std::vector<uint32_t>>, Group> groups;
  for (const auto& [id, wait] : waits_) {
    Group& group = groups[{wait.name, wait.steps, wait.collected, wait.missing}];
    if (group.oldest == nullptr) group.oldest = &wait;
    ++group.pulls;
    if (group.shards.size() < limits::kWaitShardsMax) group.shards.insert(wait.shard);
  }
  for (const auto& [key, group] : groups) {
    const Wait& oldest = *group.oldest;
    v1::WaitStatus* const out = status->add_waits();
    out->set_who(group.pulls == 1 ? "a pull" : absl::StrCat(group.pulls, " pulls"));
    out->set_what(TextOf(oldest));
    out->set_seconds(static_cast<double>(now_ms - oldest.since_ms) / 1000);
    out->mutable_shards()->Add(group.shards.begin(), group.shards.end());
    if (oldest.missing.empty()) continue;
    v1::WaitTarget* const target = out->add_targets();
    target->set_kind(v1::WaitTarget::CONTRIBUTION);
    target->set_step(oldest.collected);
    const size_t named = std::min<size_t>(oldest.missing.size(), limits::kWaitBatchesMax);
    target->mutable_batches()->Add(oldest.missing.begin(), oldest.missing.begin() + static_cast<ptrdiff_t>(named));
  }
}

}  // namespace lodestone::server
