// same-machine: pushes and pulls through a ps's Unix socket, or with values in shared memory, beside the same over TCP.
#include <algorithm>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tools/bench/harness/stats.h"
#include "tools/bench/load/client_load.h"
#include "tools/bench/load/pairs.h"
#include "tools/bench/suite/suites.h"

namespace lodestone::bench {
namespace {

constexpr char kBench[] = "same-machine";
constexpr uint32_t kShards = 4;
constexpr uint64_t kTotalBytes = 64 << 20;  // Of the tables together, …
constexpr uint64_t kTablesMax = 1024;       // … unless they were more than these.

// How values get from one process to the other.
enum class Way { kTcp, kSocket, kSharedMemory };

absl::StatusOr<std::unique_ptr<PsPair>> StartPair(const Options& options, uint64_t bytes, Way way) {
  Options changed = options;
  changed.sets.push_back(absl::StrCat("cluster.local_sockets=", way == Way::kSocket ? "true" : "false"));
  changed.sets.push_back(absl::StrCat("cluster.shared_memory=", way == Way::kSharedMemory ? "true" : "false"));
  const DenseWork work{bytes, static_cast<uint32_t>(std::min(kTotalBytes / bytes, kTablesMax)), 8};
  return PsPair::Start(changed, kShards, 1,
                       [&](uint32_t, const v1::Config& config) { return DenseLoad(config, work); });
}

absl::Status AddRows(const Options& options, Way way, uint64_t bytes, const AddRow& add) {
  const char* const bench = way == Way::kSharedMemory ? "same-machine/shared-memory" : kBench;
  std::unique_ptr<PsPair> local, tcp;  // Started when the first row is wanted.
  for (const auto operation : {ClientOperation::kPush, ClientOperation::kPull}) {
    for (const uint32_t depth : {1u, 8u}) {
      const std::string name = absl::StrCat(bench, "/", NameOf(operation), "/", SizeText(bytes), "/depth", depth);
      if (!IsWanted(options, name)) continue;
      if (local == nullptr) {
        LODESTONE_ASSIGN_OR_RETURN(local, StartPair(options, bytes, way));
        LODESTONE_ASSIGN_OR_RETURN(tcp, StartPair(options, bytes, Way::kTcp));
      }
      Order order;
      order.operation = static_cast<uint32_t>(operation);
      order.depth = depth;
      LODESTONE_ASSIGN_OR_RETURN(Row measured, MeasureInTurns(
                                                   options, kBench, name, BytesScale(bytes),
                                                   [&] { return local->Measure(1, order, options.window_ms); },
                                                   [&] { return tcp->Measure(1, order, options.window_ms); }));
      add(std::move(measured));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunSameMachine(const Options& options, const AddRow& add) {
  for (const uint64_t bytes : {uint64_t{4} << 10, uint64_t{64} << 10, uint64_t{1} << 20, uint64_t{4} << 20}) {
    LODESTONE_RETURN_IF_ERROR(AddRows(options, Way::kSocket, bytes, add));
  }
  for (const uint64_t bytes : {uint64_t{64} << 10, uint64_t{1} << 20, uint64_t{4} << 20}) {
    LODESTONE_RETURN_IF_ERROR(AddRows(options, Way::kSharedMemory, bytes, add));
  }
  return absl::OkStatus();
}

}  // namespace lodestone::bench
