// keys: batches of rows whose lists of keys repeat, beside the same with lists that never come again. What the first
// gain is what is remembered of them.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tools/bench/load/client_load.h"
#include "tools/bench/load/pairs.h"
#include "tools/bench/suite/suites.h"

namespace lodestone::bench {
namespace {

constexpr char kBench[] = "keys";
constexpr uint32_t kKeys = 4096;
constexpr uint32_t kDepthMax = 4;

absl::Status AddRows(const Options& options, uint64_t rows, uint32_t dim, const AddRow& add) {
  std::unique_ptr<PsPair> ps;
  for (const auto operation : {ClientOperation::kPull, ClientOperation::kPush, ClientOperation::kPullThenPush}) {
    for (const uint32_t depth : {1u, kDepthMax}) {
      const std::string name =
          absl::StrCat(kBench, "/", NameOf(operation), "/", rows / 1000, "Krows/dim", dim, "/depth", depth);
      if (!IsWanted(options, name)) continue;
      if (ps == nullptr) {
        LODESTONE_ASSIGN_OR_RETURN(ps, PsPair::Start(options, 0, 1, [&](uint32_t, const v1::Config& config) {
                                     return RowsLoad(config, {rows, dim, kKeys, kDepthMax});
                                   }));
      }
      Order fresh;
      fresh.operation = static_cast<uint32_t>(operation);
      fresh.depth = depth;
      Order repeating = fresh;
      repeating.repeat_keys = true;
      const uint64_t steps = operation == ClientOperation::kPullThenPush ? 2 : 1;
      const uint64_t bytes = steps * kKeys * (sizeof(uint64_t) + dim * sizeof(float));
      LODESTONE_ASSIGN_OR_RETURN(Row row, MeasureInTurns(
                                              options, kBench, name, KeysScale(kKeys, bytes),
                                              [&] { return ps->Measure(1, repeating, options.window_ms); },
                                              [&] { return ps->Measure(1, fresh, options.window_ms); }));
      add(std::move(row));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunKeys(const Options& options, const AddRow& add) {
  if (options.quick) return AddRows(options, 100'000, 16, add);
  for (const uint32_t dim : {1u, 16u, 64u}) LODESTONE_RETURN_IF_ERROR(AddRows(options, 1'000'000, dim, add));
  return absl::OkStatus();
}

}  // namespace lodestone::bench
