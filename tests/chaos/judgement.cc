#include "tests/chaos/judgement.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/time_source.h"
#include "tests/chaos/linearizability.h"

namespace lodestone::chaos {
namespace {

constexpr size_t kFindingsMax = 20;

using Operations = std::vector<Operation>;

bool IsAdd(const Operation& operation) { return operation.call == Operation::Call::kAdd; }
bool IsAnsweredRead(const Operation& operation) { return !IsAdd(operation) && operation.answered(); }
// The one was over before the other began.
bool Precedes(const Operation& one, const Operation& other) { return one.end_ns < other.start_ns; }

void Find(std::string what, Judgement* judgement) {
  if (judgement->findings.size() < kFindingsMax) judgement->findings.push_back(std::move(what));
}

std::string Describe(const Operation& operation) {
  return absl::StrCat("client ", operation.client, IsAdd(operation) ? "'s add of " : "'s read of ", operation.value,
                      " at ", operation.start_ns, " ns");
}

// Whether what a read has beyond the adds that it must show is a sum of some of those that it may show.
bool IsSumOfSome(int64_t rest, const std::vector<int64_t>& values) {
  std::set<int64_t> sums = {0};
  for (const int64_t value : values) {
    std::set<int64_t> more;
    for (const int64_t sum : sums) more.insert(sum + value);
    sums.merge(more);
  }
  return sums.contains(rest);
}

// Whether a read shows all adds that were answered before it, and of the others only such as had been made.
bool IsExplained(const Operation& read, const Operations& row) {
  int64_t rest = read.value;
  std::vector<int64_t> open;
  for (const Operation& add : row) {
    if (!IsAdd(add)) continue;
    if (Precedes(add, read)) {
      rest -= add.value;
    } else if (!Precedes(read, add)) {
      open.push_back(add.value);
    }
  }
  return IsSumOfSome(rest, open);
}

// Whether a read may have shown an add that a kill took back.
bool MayBeTakenBack(const Operation& read, const Operations& row, const std::vector<FaultMark>& faults) {
  for (const FaultMark& kill : faults) {
    if (!kill.kills || read.start_ns > kill.end_ns) continue;
    for (const Operation& add : row) {
      const bool met = IsAdd(add) && add.start_ns <= kill.end_ns && add.end_ns >= kill.start_ns;
      if (met && !Precedes(read, add)) return true;
    }
  }
  return false;
}

void JudgeRow(uint64_t name, const Operations& row, const std::vector<FaultMark>& faults, Judgement* judgement) {
  ++judgement->rows;
  judgement->open_max = std::max<uint64_t>(judgement->open_max, OpenMax(row));
  const Linearization all = CheckCounter(row);
  if (all.answer == Linearization::Answer::kUndecided) {
    ++judgement->rows_undecided;
    return Find(absl::StrCat("row ", name, ": the search was given up after ", all.states, " states"), judgement);
  }
  if (all.answer == Linearization::Answer::kLegal) {
    ++judgement->rows_linearizable;
    return;
  }
  const auto unexplained = std::find_if(row.begin(), row.end(), [&](const Operation& operation) {
    return IsAnsweredRead(operation) && !IsExplained(operation, row);
  });
  Operations kept;
  std::copy_if(row.begin(), row.end(), std::back_inserter(kept),
               [&](const Operation& operation) { return IsAdd(operation) || !MayBeTakenBack(operation, row, faults); });
  if (unexplained == row.end() && kept.size() < row.size() &&
      CheckCounter(kept).answer == Linearization::Answer::kLegal) {
    ++judgement->rows_taken_back;
    return;
  }
  ++judgement->rows_illegal;
  const Operation& culprit = unexplained == row.end() ? row[all.stuck] : *unexplained;
  Find(absl::StrCat("row ", name, ": no order of its ", row.size(), " operations explains ", Describe(culprit),
                    unexplained == row.end() ? "" : ", nor does any set of pushes"),
       judgement);
}

// Reads in the order in which they ended, and those that had ended before each.
void JudgeVersions(ShardId shard, Operations reads, const std::vector<FaultMark>& faults, Judgement* judgement) {
  Operations by_start = reads;
  std::sort(reads.begin(), reads.end(), [](const Operation& a, const Operation& b) { return a.end_ns < b.end_ns; });
  std::sort(by_start.begin(), by_start.end(),
            [](const Operation& a, const Operation& b) { return a.start_ns < b.start_ns; });
  const Operation* greatest = nullptr;  // Of those that ended before.
  size_t ended = 0;
  for (const Operation& read : by_start) {
    for (; ended < reads.size() && Precedes(reads[ended], read); ++ended) {
      if (greatest == nullptr || reads[ended].version >= greatest->version) greatest = &reads[ended];
    }
    if (greatest == nullptr || greatest->version <= read.version) continue;
    const bool killed = std::any_of(faults.begin(), faults.end(), [&](const FaultMark& fault) {
      return fault.kills && fault.start_ns <= read.end_ns && fault.end_ns >= greatest->start_ns;
    });
    if (killed) {
      ++judgement->versions_taken_back;
      continue;
    }
    ++judgement->versions_fallen;
    Find(absl::StrCat("shard ", shard, " is at version ", read.version, " in ", Describe(read), ", after ",
                      greatest->version, " in ", Describe(*greatest)),
         judgement);
  }
}

void JudgeSessions(uint64_t name, const Operations& row, Judgement* judgement) {
  for (const Operation& read : row) {
    if (!IsAnsweredRead(read)) continue;
    if (read.value != read.twin) {
      ++judgement->twins_apart;
      Find(absl::StrCat("row ", name, ": ", Describe(read), " has ", read.twin, " in its twin"), judgement);
    }
    int64_t own = 0;
    for (const Operation& add : row) {
      if (IsAdd(add) && add.client == read.client && Precedes(add, read)) own += add.value;
    }
    if (own <= read.value) continue;
    ++judgement->own_adds_missing;
    Find(absl::StrCat("row ", name, ": ", Describe(read), " lacks what it has added itself: ", own), judgement);
  }
}

}  // namespace

void Judgement::Add(const Judgement& other) {
  for (uint64_t Judgement::*count :
       {&Judgement::histories, &Judgement::operations, &Judgement::unanswered, &Judgement::rows,
        &Judgement::rows_linearizable, &Judgement::rows_taken_back, &Judgement::rows_illegal,
        &Judgement::rows_undecided, &Judgement::twins_apart, &Judgement::own_adds_missing, &Judgement::versions_fallen,
        &Judgement::versions_taken_back}) {
    this->*count += other.*count;
  }
  open_max = std::max(open_max, other.open_max);
  seconds_max = std::max(seconds_max, other.seconds_max);
  for (const std::string& finding : other.findings) Find(finding, this);
}

Judgement Judge(const History& history) {
  const SteadyTime time;
  const int64_t start_ms = time.NowMs();
  Judgement judgement;
  judgement.histories = 1;
  judgement.operations = history.operations.size();
  std::map<uint64_t, Operations> rows;
  std::map<ShardId, Operations> reads;
  for (const Operation& operation : history.operations) {
    judgement.unanswered += operation.answered() ? 0 : 1;
    rows[operation.row].push_back(operation);
    if (IsAnsweredRead(operation)) reads[operation.shard].push_back(operation);
  }
  for (const auto& [name, row] : rows) {
    JudgeSessions(name, row, &judgement);
    JudgeRow(name, row, history.faults, &judgement);
  }
  for (auto& [shard, of_shard] : reads) JudgeVersions(shard, std::move(of_shard), history.faults, &judgement);
  judgement.seconds_max = static_cast<double>(time.NowMs() - start_ms) / 1000;
  return judgement;
}

std::string ToText(const Judgement& judgement) {
  std::string text = absl::StrFormat(
      "histories            %d of %d operations, %d unanswered; at most %d open on a row; the longest check %.3f s\n",
      judgement.histories, judgement.operations, judgement.unanswered, judgement.open_max, judgement.seconds_max);
  absl::StrAppendFormat(&text, "linearizable         %d of %d rows; %d but for what a kill took back\n",
                        judgement.rows_linearizable, judgement.rows, judgement.rows_taken_back);
  absl::StrAppendFormat(&text, "not linearizable     %d; given up %d\n", judgement.rows_illegal,
                        judgement.rows_undecided);
  absl::StrAppendFormat(&text, "half a push shown    %d\nown push not shown   %d\n", judgement.twins_apart,
                        judgement.own_adds_missing);
  absl::StrAppendFormat(&text, "versions that fell   %d; %d more with a kill\n", judgement.versions_fallen,
                        judgement.versions_taken_back);
  for (const std::string& finding : judgement.findings) absl::StrAppend(&text, "  ", finding, "\n");
  return text;
}

}  // namespace lodestone::chaos
