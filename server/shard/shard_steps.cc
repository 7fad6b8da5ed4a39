#include "server/shard/shard_steps.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "server/shard/shard.h"

namespace lodestone::server {
namespace {

std::shared_ptr<StepContribution> NewContribution(const v1::Contribution& header, uint64_t now_ms) {
  auto contribution = std::make_shared<StepContribution>();
  contribution->step = header.step();
  contribution->batch = header.batch();
  contribution->samples = header.samples();
  contribution->now_ms = now_ms;
  return contribution;
}

// Copies what a part of a push holds behind what is there.
void AddPart(const PartView& part, StepContribution* contribution) {
  contribution->takes_new &= part.takes_new;
  contribution->room_bytes += part.room_bytes;
  contribution->blocks.insert(contribution->blocks.end(), part.blocks.begin(), part.blocks.end());
  const size_t keys = contribution->keys.size();
  contribution->keys.resize(keys + part.row_count);
  part.keys.CopyTo(contribution->keys.data() + keys);
  const size_t values = contribution->gradients.size();
  contribution->gradients.resize(values + part.values);
  part.gradients.CopyTo(contribution->gradients.data() + values);
}

template <typename T>
ByteView ViewOf(const T* values, size_t count) {
  return {reinterpret_cast<const uint8_t*>(values), count * sizeof(T)};
}

}  // namespace

absl::Status NoContribution(const std::string& table) {
  return absl::InvalidArgumentError(absl::StrCat(
      "table `", table, "` has steps (its consistency is sync or tokens), and the push is no contribution to one: ",
      "PushRequest.contribution is missing; train with the table's consistency, or set it to async"));
}

const StepCollector* ShardSteps::Of(TableId table) const {
  const auto found = contents_->steps.find(table);
  return found == contents_->steps.end() ? nullptr : found->second.get();
}

absl::StatusOr<StepCollector*> ShardSteps::Find(TableId table) const {
  const auto found = contents_->steps.find(table);
  if (found != contents_->steps.end()) return found->second.get();
  return absl::InvalidArgumentError(absl::StrCat("there is no table with id ", table, " that has steps"));
}

absl::StatusOr<ShardSteps::Judgement> ShardSteps::Judge(std::span<const PartView> parts,
                                                        const v1::Contribution* contribution) const {
  Judgement judgement;
  if (contents_->steps.empty()) return judgement;
  bool any_duplicate = false;
  bool any_new = false;
  for (const PartView& part : parts) {
    const StepCollector* const collector = Of(part.table->id());
    if (collector == nullptr) continue;
    if (contribution == nullptr) return NoContribution(part.table->name());
    judgement.collects = true;
    auto verdict = collector->Judge(*contribution);
    if (!verdict.ok()) return Annotate(verdict.status(), absl::StrCat("shard ", contents_->id));
    judgement.ahead |= *verdict == StepCollector::Verdict::kAhead;
    judgement.late |= *verdict == StepCollector::Verdict::kLate;
    if (!collector->is_sync()) continue;
    any_duplicate |= *verdict == StepCollector::Verdict::kDuplicate;
    any_new |= *verdict != StepCollector::Verdict::kDuplicate;
  }
  judgement.duplicate = any_duplicate && !any_new;
  return judgement;
}

std::vector<AppliedStep> ShardSteps::Take(std::span<const PartView> parts, const v1::Contribution& contribution,
                                          uint64_t now_ms, Version version, Evictions* evictions) {
  struct Taken {
    StepCollector* collector = nullptr;
    StepCollector::Verdict verdict = StepCollector::Verdict::kNew;
    std::shared_ptr<StepContribution> contribution;
  };
  std::vector<std::pair<TableId, Taken>> taken;  // By table, in order of first appearance: a handful.
  bool any_duplicate = false;
  for (const PartView& part : parts) {
    const auto collector = contents_->steps.find(part.table->id());
    if (collector == contents_->steps.end()) continue;
    auto known =
        std::find_if(taken.begin(), taken.end(), [&](const auto& one) { return one.first == part.table->id(); });
    if (known == taken.end()) {
      const StepCollector::Verdict verdict = *collector->second->Judge(contribution);  // Was OK.
      any_duplicate |= verdict == StepCollector::Verdict::kDuplicate;
      taken.push_back({part.table->id(), {collector->second.get(), verdict, NewContribution(contribution, now_ms)}});
      known = taken.end() - 1;
    }
    AddPart(part, known->second.contribution.get());
  }
  // What a table has the contribution of has come here before, from another worker, with its other parts; those of
  // tokens, too, which are not known by themselves.
  if (!any_duplicate) {
    for (const PartView& part : parts) {
      if (!contents_->steps.contains(part.table->id())) contents_->Apply(part, now_ms, version, evictions);
    }
  }
  std::vector<AppliedStep> applied;
  for (auto& [table, one] : taken) {
    if (one.verdict == StepCollector::Verdict::kDuplicate || (any_duplicate && !one.collector->is_sync())) continue;
    one.collector->Take(std::move(one.contribution), one.verdict);
    while (one.collector->Closes()) applied.push_back({table, Close(table, now_ms, version, evictions)});
  }
  return applied;
}

uint64_t ShardSteps::Close(TableId table, uint64_t now_ms, Version version, Evictions* evictions) {
  const StepGradient gradient = contents_->steps.find(table)->second->Close(now_ms);
  if (gradient.any) Apply(table, gradient, now_ms, version, evictions);
  return gradient.step;
}

void ShardSteps::Apply(TableId table, const StepGradient& gradient, uint64_t now_ms, Version version,
                       Evictions* evictions) {
  if (const auto dense = contents_->dense.find(table); dense != contents_->dense.end()) {
    const float* at = gradient.gradients.data();
    for (const BlockIndex block : gradient.blocks) {
      const size_t n = dense->second->table().layout().ElementsOf(block);
      dense->second->Apply(block, ViewOf(at, n), version);
      at += n;
    }
    return;
  }
  EmbeddingTable& rows = *contents_->rows.find(table)->second;
  const size_t dim = rows.table().dim();
  // Rows that may be made and those that may not, in runs; all of them are one step of the schedule.
  size_t begin = 0;
  do {
    size_t end = begin;
    while (end < gradient.keys.size() && gradient.takes_new[end] == gradient.takes_new[begin]) ++end;
    const bool takes_new = begin == end || gradient.takes_new[begin] != 0;
    rows.Apply(ViewOf(gradient.keys.data() + begin, end - begin),
               ViewOf(gradient.gradients.data() + begin * dim, (end - begin) * dim), end - begin, now_ms, version,
               evictions, takes_new, /*ends_step=*/end == gradient.keys.size());
    begin = end;
  } while (begin < gradient.keys.size());
}

std::vector<TableId> ShardSteps::Due(uint64_t now_ms) const {
  std::vector<TableId> due;
  for (const auto& [table, collector] : contents_->steps) {
    const std::optional<uint64_t> due_ms = collector->due_ms();
    if (due_ms.has_value() && *due_ms <= now_ms) due.push_back(table);
  }
  std::sort(due.begin(), due.end());
  return due;
}

std::optional<uint64_t> ShardSteps::NextDueMs() const {
  std::optional<uint64_t> next;
  for (const auto& [table, collector] : contents_->steps) {
    const std::optional<uint64_t> due_ms = collector->due_ms();
    if (due_ms.has_value() && (!next.has_value() || *due_ms < *next)) next = due_ms;
  }
  return next;
}

absl::Status ShardSteps::Restore(const v1::TableSteps& steps) {
  LODESTONE_ASSIGN_OR_RETURN(StepCollector* const collector, Find(steps.table()));
  return collector->Restore(steps);
}

absl::Status ShardSteps::RestorePending(const v1::PendingContribution& header, std::span<const uint8_t> payload) {
  LODESTONE_ASSIGN_OR_RETURN(StepCollector* const collector, Find(header.table()));
  const auto error = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("a contribution to table id ", header.table(), ", step ",
                                                   header.contribution().step(), ", batch ",
                                                   header.contribution().batch(), ": ", what));
  };
  const auto dense = contents_->dense.find(header.table());
  const bool is_dense = dense != contents_->dense.end();
  if (is_dense ? header.row_count() > 0 : header.blocks_size() > 0) return error("is of another kind of table");
  auto contribution = NewContribution(header.contribution(), header.now_ms());
  contribution->takes_new = !header.table_full();
  uint64_t values = 0;
  if (is_dense) {
    const Table& table = dense->second->table();
    for (const BlockIndex block : header.blocks()) {
      if (block >= table.layout().block_count() || ShardOfBlock(table.id(), block, table.shards()) != contents_->id) {
        return error(absl::StrCat("block ", block, " is not on shard ", contents_->id));
      }
      contribution->blocks.push_back(block);
      values += table.layout().ElementsOf(block);
    }
  } else {
    values = uint64_t{header.row_count()} * contents_->rows.find(header.table())->second->table().dim();
  }
  const uint64_t key_bytes = uint64_t{header.row_count()} * sizeof(Key);
  if (payload.size() != key_bytes + values * sizeof(float)) {
    return error(absl::StrCat("has ", payload.size(), " bytes, not ", key_bytes + values * sizeof(float)));
  }
  // Whether a contribution of that step and batch may be here is judged as when it came.
  if (collector->is_sync()) {
    auto verdict = collector->Judge(header.contribution());
    if (!verdict.ok()) return error(std::string(verdict.status().message()));
    const bool carried = header.contribution().step() < collector->steps();
    if (*verdict == StepCollector::Verdict::kDuplicate && !carried) return error("is there twice");
  }
  contribution->keys.resize(header.row_count());
  if (key_bytes > 0) std::memcpy(contribution->keys.data(), payload.data(), key_bytes);
  contribution->gradients.resize(values);
  if (values > 0) std::memcpy(contribution->gradients.data(), payload.data() + key_bytes, values * sizeof(float));
  collector->RestorePending(std::move(contribution));
  return absl::OkStatus();
}

}  // namespace lodestone::server
