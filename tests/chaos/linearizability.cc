#include "tests/chaos/linearizability.h"

#include <algorithm>
#include <tuple>

#include "absl/container/flat_hash_set.h"

namespace lodestone::chaos {
namespace {

// Which operations have their place.
using Placed = std::vector<uint64_t>;

// A call or an answer, in a list of both by time.
struct Entry {
  int64_t ns = 0;
  bool answer = false;
  size_t operation = 0;
  size_t partner = 0;  // The answer of a call.
  size_t previous = 0;
  size_t next = 0;
};

class Search {
 public:
  Search(std::span<const Operation> operations, uint64_t states_max)
      : operations_(operations), states_max_(states_max), placed_((operations.size() + 63) / 64) {
    MakeList();
  }

  Linearization Run() {
    Linearization result;
    size_t at = First();
    while (First() != 0) {
      const Entry& entry = entries_[at];
      if (!entry.answer) {
        if (TryPlace(at)) {
          if (order_.size() > result.order.size()) Keep(&result);
          if (seen_.size() > states_max_) return End(Linearization::Answer::kUndecided, result);
          at = First();
        } else {
          at = entry.next;
        }
        continue;
      }
      // It must have its place by now: the one placed last was placed wrongly, or all before.
      if (order_.size() == result.order.size()) result.stuck = entry.operation;
      if (order_.empty()) return End(Linearization::Answer::kIllegal, result);
      at = entries_[TakeBack()].next;
    }
    Keep(&result);
    return End(Linearization::Answer::kLegal, result);
  }

 private:
  // The list's head is entry 0.
  size_t First() const { return entries_[0].next; }

  void MakeList() {
    entries_.resize(1);
    for (size_t i = 0; i < operations_.size(); ++i) {
      const Operation& operation = operations_[i];
      if (operation.call == Operation::Call::kRead && !operation.answered()) continue;
      entries_.push_back({operation.start_ns, false, i});
      entries_.push_back({operation.end_ns, true, i});
    }
    // What ends as another begins is concurrent with it.
    std::sort(entries_.begin() + 1, entries_.end(), [](const Entry& a, const Entry& b) {
      return std::tie(a.ns, a.answer, a.operation) < std::tie(b.ns, b.answer, b.operation);
    });
    std::vector<size_t> call_of(operations_.size());
    for (size_t i = 1; i < entries_.size(); ++i) {
      if (entries_[i].answer) {
        entries_[call_of[entries_[i].operation]].partner = i;
      } else {
        call_of[entries_[i].operation] = i;
      }
    }
    for (size_t i = 0; i < entries_.size(); ++i) {
      entries_[i].previous = i == 0 ? entries_.size() - 1 : i - 1;
      entries_[i].next = i + 1 == entries_.size() ? 0 : i + 1;
    }
  }

  void Unlink(size_t entry) {
    entries_[entries_[entry].previous].next = entries_[entry].next;
    entries_[entries_[entry].next].previous = entries_[entry].previous;
  }
  void Relink(size_t entry) {
    entries_[entries_[entry].previous].next = entry;
    entries_[entries_[entry].next].previous = entry;
  }

  // Places the operation of this call next, if the counter allows it and the state that this makes is new.
  bool TryPlace(size_t call) {
    const size_t index = entries_[call].operation;
    const Operation& operation = operations_[index];
    const bool adds = operation.call == Operation::Call::kAdd;
    if (!adds && operation.value != counter_) return false;
    placed_[index / 64] ^= uint64_t{1} << (index % 64);
    // What is placed determines the counter: it needs no memory of its own.
    if (!seen_.insert(placed_).second) {
      placed_[index / 64] ^= uint64_t{1} << (index % 64);
      return false;
    }
    if (adds) counter_ += operation.value;
    order_.push_back(call);
    Unlink(call);
    Unlink(entries_[call].partner);
    return true;
  }

  // The call that was placed last, which is in the list again.
  size_t TakeBack() {
    const size_t call = order_.back();
    order_.pop_back();
    const size_t index = entries_[call].operation;
    placed_[index / 64] ^= uint64_t{1} << (index % 64);
    if (operations_[index].call == Operation::Call::kAdd) counter_ -= operations_[index].value;
    Relink(entries_[call].partner);
    Relink(call);
    return call;
  }

  void Keep(Linearization* result) const {
    result->order.clear();
    for (const size_t call : order_) result->order.push_back(entries_[call].operation);
  }
  Linearization End(Linearization::Answer answer, Linearization result) const {
    result.answer = answer;
    result.states = seen_.size();
    return result;
  }

  const std::span<const Operation> operations_;
  const uint64_t states_max_;
  std::vector<Entry> entries_;
  std::vector<size_t> order_;  // Calls, as they were placed.
  Placed placed_;
  absl::flat_hash_set<Placed> seen_;
  int64_t counter_ = 0;
};

}  // namespace

Linearization CheckCounter(std::span<const Operation> operations, uint64_t states_max) {
  return Search(operations, states_max).Run();
}

size_t OpenMax(std::span<const Operation> operations) {
  std::vector<std::pair<int64_t, int>> changes;
  for (const Operation& operation : operations) {
    changes.emplace_back(operation.start_ns, -1);  // Before what ends at the same time.
    changes.emplace_back(operation.end_ns, 1);
  }
  std::sort(changes.begin(), changes.end());
  size_t open = 0, most = 0;
  for (const auto& [ns, change] : changes) most = std::max(most, open -= change);
  return most;
}

}  // namespace lodestone::chaos
