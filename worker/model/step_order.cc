#include "worker/model/step_order.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace lodestone::worker {

v1::Consistency ConsistencyOf(const v1::Config& config, const v1::TableConfig& group) {
  v1::Consistency consistency = group.has_consistency() ? group.consistency() : config.train().consistency();
  const uint32_t workers = std::max(1u, config.cluster().workers());
  if (consistency.has_sync() && consistency.sync().batches() == 0) consistency.mutable_sync()->set_batches(workers);
  if (consistency.has_tokens() && consistency.tokens().batch() == 0) consistency.mutable_tokens()->set_batch(workers);
  if (consistency.has_async() && consistency.async().rate() == v1::Consistency::Async::FULL) consistency.Clear();
  return consistency;
}

v1::Consistency StepOrderOf(const std::vector<v1::TableSpec>& tables) {
  v1::Consistency order;
  for (const v1::TableSpec& table : tables) {
    const v1::Consistency& of = table.consistency();
    if (of.has_sync() || of.has_tokens()) return of;
    if (!of.has_bounded()) continue;
    if (!order.has_bounded() || of.bounded().staleness() < order.bounded().staleness()) order = of;
  }
  return order;
}

std::string InWords(const v1::Consistency& consistency) {
  switch (consistency.kind_case()) {
    case v1::Consistency::kBounded:
      return absl::StrCat("bounded, staleness ", consistency.bounded().staleness());
    case v1::Consistency::kSync: {
      const v1::Consistency::Sync& sync = consistency.sync();
      const bool all = sync.quorum() == 0 || sync.quorum() >= sync.batches();
      return absl::StrCat("sync, steps of ", sync.batches(), " batches",
                          all ? "" : absl::StrCat(", quorum ", sync.quorum()),
                          sync.backup() == 0 ? "" : absl::StrCat(", backup ", sync.backup()));
    }
    case v1::Consistency::kTokens:
      return absl::StrCat("tokens, steps of ", consistency.tokens().batch(), " gradients, staleness ",
                          consistency.tokens().staleness());
    case v1::Consistency::kAsync:
    case v1::Consistency::KIND_NOT_SET:
      break;
  }
  return "";
}

}  // namespace lodestone::worker
