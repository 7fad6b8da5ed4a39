#include "tests/chaos/recorder.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/random.h"
#include "tests/chaos/workload.h"

namespace lodestone::chaos {
namespace {

constexpr uint64_t kWeights = 7;    // From 1: which adds a sum has shows which.
constexpr uint64_t kDieEvery = 50;  // One add of so many, as long as it may.
constexpr uint64_t kDieAfterUs = 3000;
constexpr int kSearchBits = 20;  // As Workload's.

}  // namespace

int64_t Recorder::NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Recorder::Order Recorder::Next(uint64_t client) {
  MutexLock lock(&mu_);
  if (open_[newest_].given == options_.operations) ++newest_;
  Open& open = open_[newest_];
  open.deaths.resize(options_.rows);
  const uint64_t stream = StreamSeed(StreamSeed(options_.seed, newest_), open.given++);
  const uint64_t row = RandomBits(stream, 0) % options_.rows;
  Order order;
  order.history = newest_;
  Operation& operation = order.operation;
  operation.client = client;
  operation.call = RandomBits(stream, 1) % 2 == 0 ? Operation::Call::kAdd : Operation::Call::kRead;
  operation.row = newest_ * options_.rows + row;
  operation.shard = static_cast<ShardId>(operation.row % options_.shards);
  order.key = KeyOn(Key{2 * operation.row} << kSearchBits, operation.shard, options_.shards);
  order.twin = KeyOn(Key{2 * operation.row + 1} << kSearchBits, operation.shard, options_.shards);
  if (operation.call == Operation::Call::kAdd) {
    operation.value = 1 + static_cast<int64_t>(RandomBits(stream, 2) % kWeights);
    order.dies = options_.clients + open.deaths[row] < options_.open_max && RandomBits(stream, 3) % kDieEvery == 0;
    order.dies_after_us = static_cast<int64_t>(RandomBits(stream, 4) % kDieAfterUs);
    open.deaths[row] += order.dies ? 1 : 0;
  }
  return order;
}

void Recorder::Record(uint64_t history, const Operation& operation) {
  History finished;
  {
    MutexLock lock(&mu_);
    const auto found = open_.find(history);
    LODESTONE_CHECK(found != open_.end());
    found->second.operations.push_back(operation);
    if (found->second.operations.size() < options_.operations) return;
    finished = Finish(std::move(found->second));
    open_.erase(found);
  }
  JudgeAndKeep(history, finished);
}

History Recorder::Finish(Open open) {
  History history{.operations = std::move(open.operations)};
  int64_t begin_ns = kNeverNs, end_ns = 0;
  for (const Operation& operation : history.operations) {
    begin_ns = std::min(begin_ns, operation.start_ns);
    end_ns = std::max(end_ns, operation.answered() ? operation.end_ns : operation.start_ns);
  }
  for (const FaultMark& fault : faults_) {
    if (fault.start_ns <= end_ns && fault.end_ns >= begin_ns) history.faults.push_back(fault);
  }
  return history;
}

void Recorder::JudgeAndKeep(uint64_t number, const History& history) {
  Judgement judgement = Judge(history);
  for (std::string& finding : judgement.findings) finding = absl::StrCat("history ", number, ", ", finding);
  if (!options_.folder.empty()) {
    std::ofstream(absl::StrCat(options_.folder, "/history-", number, ".jsonl")) << ToJsonLines(history);
  }
  MutexLock lock(&mu_);
  judgement_.Add(judgement);
}

size_t Recorder::BeginFault(const std::string& what, bool kills) {
  MutexLock lock(&mu_);
  faults_.push_back({what, kills, NowNs(), kNeverNs});
  return faults_.size() - 1;
}

void Recorder::EndFault(size_t fault) {
  MutexLock lock(&mu_);
  faults_[fault].end_ns = NowNs();
}

uint64_t Recorder::finished() const {
  MutexLock lock(&mu_);
  return judgement_.histories;
}

Judgement Recorder::Conclude() {
  std::map<uint64_t, History> rest;
  {
    MutexLock lock(&mu_);
    for (auto& [number, open] : open_) {
      if (!open.operations.empty()) rest[number] = Finish(std::move(open));
    }
    open_.clear();
  }
  for (const auto& [number, history] : rest) JudgeAndKeep(number, history);
  MutexLock lock(&mu_);
  return judgement_;
}

}  // namespace lodestone::chaos
