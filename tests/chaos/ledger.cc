#include "tests/chaos/ledger.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace lodestone::chaos {
namespace {

constexpr size_t kLedgerFindingsMax = 20;
constexpr float kFloatExact = 1 << (kDigitBits * kDigitsPerFloat);  // Integers below it are floats.

void Find(std::string what, Verdict* verdict) {
  if (verdict->findings.size() < kLedgerFindingsMax) verdict->findings.push_back(std::move(what));
}

std::string Range(int64_t least, int64_t most) {
  return least == most ? absl::StrCat(least) : absl::StrCat(least, " to ", most);
}

// The row that was pulled for `key`.
const std::vector<float>& RowOf(const absl::flat_hash_map<Key, std::vector<float>>& rows, Key key) {
  const auto found = rows.find(key);
  LODESTONE_CHECK(found != rows.end());
  return found->second;
}

}  // namespace

void Verdict::Add(const Verdict& other) {
  compared += other.compared;
  lost += other.lost;
  doubled += other.doubled;
  judged = std::max(judged, other.judged);  // Every audit judges all.
  wrong += other.wrong;
  undecided += other.undecided;
  applied += other.applied;
  for (const std::string& finding : other.findings) Find(finding, this);
}

Ledger::Ledger(const Workload* workload, bool others_push) : workload_(workload), others_push_(others_push) {
  dense_.resize(workload_->ElementsOf(TableName::kDense));
  large_.resize(workload_->ElementsOf(TableName::kLarge));
  versions_.resize(workload_->shards(), {0, 0, true});
  digits_.resize(workload_->slots());
  for (const Key key : workload_->SharedKeys()) rows_[key].resize(workload_->DimOf(TableName::kRows));
}

void Ledger::Acknowledged(const Push& push) { Record(push, true); }

void Ledger::Unanswered(const Push& push) { Record(push, false); }

void Ledger::Record(const Push& push, bool acknowledged) {
  MutexLock lock(&mu_);
  if (acknowledged) ++acknowledged_;
  if (push.last) {
    last_.emplace_back(push, acknowledged);
  } else {
    RecordSteady(push, acknowledged);
  }
}

void Ledger::RecordSteady(const Push& push, bool acknowledged) {
  const auto add = [acknowledged](Bounds* bounds, int32_t value, bool counts) {
    bounds->most += value;
    if (acknowledged) bounds->least += value;
    bounds->counts = counts;
  };
  for (const CellAdd& cell : push.cells) add(&(*CellsOf(cell.table))[cell.element], cell.value, cell.counts);
  for (const RowAdd& row : push.rows) {
    if (row.table == TableName::kDigits) {
      std::vector<Digit>& of_slot = digits_[push.slot];
      if (of_slot.size() <= push.number) of_slot.resize(push.number + 1);
      of_slot[push.number] = {.least = acknowledged, .most = 1, .sent = true, .acknowledged = acknowledged};
    } else if (row.table == TableName::kAdagrad) {
      add(&adagrad_[row.key], row.value, true);
    } else {
      add(&rows_[row.key][row.column], row.value, row.counts);
    }
  }
  for (const ShardId shard : push.shards) add(&versions_[shard], 1, true);
}

uint64_t Ledger::acknowledged() const {
  MutexLock lock(&mu_);
  return acknowledged_;
}

std::vector<Key> Ledger::KeysOf(TableName table) const {
  MutexLock lock(&mu_);
  std::vector<Key> keys;
  if (table == TableName::kAdagrad) {
    for (const auto& [key, bounds] : adagrad_) keys.push_back(key);
    return keys;
  }
  if (table == TableName::kDigits) {
    for (uint32_t slot = 0; slot < digits_.size(); ++slot) {
      for (uint64_t number = 0; number < digits_[slot].size(); ++number) {
        const RowAdd place = workload_->DigitOf(slot, number);
        if (place.column == 0 && place.value == 1) keys.push_back(place.key);  // The row's first.
      }
    }
    return keys;
  }
  for (const auto& [key, row] : rows_) keys.push_back(key);
  for (const auto& [push, acknowledged] : last_) {
    for (const RowAdd& row : push.rows) keys.push_back(row.key);
  }
  return keys;
}

Verdict Ledger::Check(const Held& held) {
  MutexLock lock(&mu_);
  Verdict verdict;
  for (const auto& [push, acknowledged] : last_) CheckLast(held, push, acknowledged, &verdict);
  last_.clear();
  CheckDense(TableName::kDense, held.dense, &verdict);
  CheckDense(TableName::kLarge, held.large, &verdict);
  CheckRows(held, &verdict);
  CheckAdagrad(held, &verdict);
  CheckDigits(held, &verdict);
  if (!others_push_) CheckVersions(held, &verdict);
  return verdict;
}

void Ledger::Compare(double value, const std::string& where, Bounds* bounds, Verdict* verdict) {
  ++verdict->compared;
  const auto number = static_cast<int64_t>(std::llround(std::clamp(std::isfinite(value) ? value : -1e15, -1e15, 1e15)));
  const bool whole = static_cast<double>(number) == value;
  if (!whole || number < bounds->least || number > bounds->most) {
    Find(absl::StrCat(where, " is ", value, ", expected ", Range(bounds->least, bounds->most)), verdict);
    if (!whole || !bounds->counts) {
      ++verdict->wrong;
    } else if (number < bounds->least) {
      verdict->lost += bounds->least - number;
    } else {
      verdict->doubled += number - bounds->most;
    }
  }
  bounds->least = bounds->most = number;
}

std::vector<Ledger::Receipt> Ledger::ReceiptsOf(const Held& held, const Push& push, ShardId shard) {
  std::vector<Receipt> receipts;
  for (const CellAdd& cell : push.cells) {
    if (cell.shard != shard) continue;
    Bounds* const bounds = &(*CellsOf(cell.table))[cell.element];
    const std::vector<float>& values = cell.table == TableName::kDense ? held.dense : held.large;
    receipts.push_back({absl::StrCat(NameOf(cell.table), " element ", cell.element), bounds,
                        values[cell.element] - static_cast<double>(bounds->least)});
  }
  for (const RowAdd& row : push.rows) {
    if (row.shard != shard) continue;
    Row& bounds = rows_[row.key];
    if (bounds.empty()) bounds.resize(workload_->DimOf(TableName::kRows));
    receipts.push_back(
        {absl::StrCat("rows key ", row.key), &bounds[row.column], RowOf(held.rows, row.key)[row.column]});
  }
  return receipts;
}

void Ledger::CheckLast(const Held& held, const Push& push, bool acknowledged, Verdict* verdict) {
  const std::string name = absl::StrCat("slot ", push.slot, "'s push ", push.number, " (of the last before its death, ",
                                        acknowledged ? "acknowledged)" : "not acknowledged)");
  for (const ShardId shard : push.shards) {
    const std::vector<Receipt> receipts = ReceiptsOf(held, push, shard);
    const double times = receipts[0].value;
    for (const Receipt& receipt : receipts) {
      if (receipt.value == times) continue;
      ++verdict->wrong;
      Find(absl::StrCat(name, " is in part on shard ", shard, ": ", times, " times in ", receipts[0].where, ", ",
                        receipt.value, " times in ", receipt.where),
           verdict);
    }
    // What is there of it counts as what must be there; Compare then finds that it is not 0 or 1, or is 0 and must not.
    for (const Receipt& receipt : receipts) {
      receipt.bounds->counts = true;
      receipt.bounds->most += 1;
      if (acknowledged) receipt.bounds->least += 1;
    }
    const bool applied = times > 0;
    versions_[shard].least += applied || acknowledged ? 1 : 0;
    versions_[shard].most += applied || acknowledged ? 1 : 0;
    if (acknowledged) continue;
    ++verdict->undecided;
    verdict->applied += applied ? 1 : 0;
  }
}

void Ledger::CheckDense(TableName table, const std::vector<float>& held, Verdict* verdict) {
  std::vector<Bounds>& cells = *CellsOf(table);
  LODESTONE_CHECK(held.size() == cells.size());
  const uint64_t per_block = cells.size() / workload_->shards();
  for (uint64_t i = 0; i < cells.size(); ++i) {
    if (held[i] == static_cast<float>(cells[i].least) && cells[i].least == cells[i].most) {
      ++verdict->compared;
      continue;
    }
    Compare(held[i], absl::StrCat(NameOf(table), " block ", i / per_block, " element ", i % per_block), &cells[i],
            verdict);
  }
}

void Ledger::CheckRows(const Held& held, Verdict* verdict) {
  for (auto& [key, row] : rows_) {
    const std::vector<float>& values = RowOf(held.rows, key);
    for (size_t i = 0; i < row.size(); ++i) {
      Compare(values[i], absl::StrCat("rows key ", key, " column ", i), &row[i], verdict);
    }
  }
}

void Ledger::CheckAdagrad(const Held& held, Verdict* verdict) {
  for (auto& [key, bounds] : adagrad_) {
    const double value = RowOf(held.adagrad, key)[0];
    const Workload::AdagradCount count = Workload::AdagradPushes(value);
    if (count.off) {  // Its state was not that of its value.
      ++verdict->wrong;
      Find(absl::StrCat("adagrad key ", key, " is ", value, ", which no number of pushes makes it, least of all ",
                        Range(bounds.least, bounds.most)),
           verdict);
    }
    Compare(static_cast<double>(count.pushes),
            absl::StrCat("adagrad key ", key, " is ", value, ": the number of pushes that make it"), &bounds, verdict);
  }
}

void Ledger::CheckDigits(const Held& held, Verdict* verdict) {
  // A row that has no digits is not there.
  for (const auto& [key, row] : held.digits) {
    for (size_t column = 0; column < row.size(); ++column) {
      const float value = row[column];
      ++verdict->compared;
      if (value >= 0 && value < kFloatExact && value == std::trunc(value)) continue;
      ++verdict->wrong;
      Find(absl::StrCat("digits key ", key, " column ", column, " is ", value, ", which no pushes make it"), verdict);
    }
  }
  for (uint32_t slot = 0; slot < digits_.size(); ++slot) {
    for (uint64_t number = 0; number < digits_[slot].size(); ++number) CheckDigit(slot, number, held, verdict);
  }
}

void Ledger::CheckDigit(uint32_t slot, uint64_t number, const Held& held, Verdict* verdict) {
  const RowAdd place = workload_->DigitOf(slot, number);
  const float value = RowOf(held.digits, place.key)[place.column];
  const auto digits = static_cast<uint32_t>(value >= 0 && value < kFloatExact ? value : 0);
  const auto there = static_cast<uint8_t>(digits / static_cast<uint32_t>(place.value) % (1u << kDigitBits));
  Digit& digit = digits_[slot][number];
  verdict->judged += digit.acknowledged ? 1 : 0;
  if (digit.least != digit.most) {  // Not acknowledged, and not looked for before.
    ++verdict->undecided;
    verdict->applied += there > 0 ? 1 : 0;
  }
  if (there < digit.least || there > digit.most) {
    Find(absl::StrCat("slot ", slot, "'s push ", number,
                      digit.acknowledged ? " (acknowledged)" : (digit.sent ? " (not acknowledged)" : " (never sent)"),
                      " is there ", there, " times, by its digit in digits key ", place.key, " column ", place.column,
                      " of weight ", place.value),
         verdict);
    if (there < digit.least) {
      verdict->lost += digit.least - there;
    } else {
      (digit.sent ? verdict->doubled : verdict->wrong) += there - digit.most;
    }
  }
  digit.least = digit.most = there;
}

void Ledger::CheckVersions(const Held& held, Verdict* verdict) {
  for (ShardId shard = 0; shard < versions_.size(); ++shard) {
    Compare(static_cast<double>(held.versions[shard]), absl::StrCat("the version of shard ", shard), &versions_[shard],
            verdict);
  }
}

}  // namespace lodestone::chaos
