// scale: what many tables and many clients cost. The same keys of 30 and of 1000 tables, beside one table that has as
// many rows; 16 and 200 clients with one operation outstanding each, beside one client with eight.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tools/bench/harness/stats.h"
#include "tools/bench/load/client_load.h"
#include "tools/bench/load/pairs.h"
#include "tools/bench/suite/suites.h"

namespace lodestone::bench {
namespace {

constexpr char kBench[] = "scale";
constexpr uint32_t kDim = 16;
constexpr uint32_t kKeys = 4096;
constexpr uint32_t kDepth = 4;
constexpr uint64_t kRowsAtLeast = 1'000'000;   // Of all tables together, …
constexpr uint64_t kRowsPerTable = 2 * kKeys;  // … and of each.
constexpr uint64_t kClientMemoryBytes = 1 << 20;
constexpr uint32_t kClientShards = 4;  // As in dense.
constexpr uint32_t kAloneDepth = 8;

// A window in which each client ends operations enough for a p99 of its own at 50,000 operations and 2 GB a second, but
// for one that would be too long.
int WindowMs(const Options& options, uint32_t clients, uint64_t bytes) {
  constexpr double kOperations = 200, kMsMax = 2000;
  const double ms_each = std::max(1e3 / 50e3, 1e3 / 2e9 * static_cast<double>(bytes));
  return options.quick
             ? options.window_ms
             : std::max(options.window_ms, static_cast<int>(std::min(kMsMax, kOperations * clients * ms_each)));
}

absl::Status AddTables(const Options& options, uint32_t tables, const AddRow& add) {
  const uint64_t rows = std::max(kRowsPerTable, kRowsAtLeast / tables);
  const uint32_t keys = kKeys / tables * tables;
  std::unique_ptr<PsPair> many, one;
  for (const auto operation : {ClientOperation::kPull, ClientOperation::kPush}) {
    for (const uint32_t at_once : {1u, tables}) {
      const std::string name = absl::StrCat(kBench, "/", NameOf(operation), "/tables", tables, "/",
                                            at_once == 1 ? "one" : "all", "-at-once");
      if (!IsWanted(options, name)) continue;
      if (many == nullptr) {
        const auto start = [&](RowsWork work) {
          return PsPair::Start(options, 0, 1,
                               [work](uint32_t, const v1::Config& config) { return RowsLoad(config, work); });
        };
        LODESTONE_ASSIGN_OR_RETURN(many, start({rows, kDim, keys, kDepth, tables}));
        LODESTONE_ASSIGN_OR_RETURN(one, start({rows * tables, kDim, keys, kDepth, 1}));
      }
      Order plain;
      plain.operation = static_cast<uint32_t>(operation);
      plain.depth = kDepth;
      Order spread = plain;
      spread.tables = at_once;
      LODESTONE_ASSIGN_OR_RETURN(
          Row row,
          MeasureInTurns(
              options, kBench, name, KeysScale(keys, uint64_t{keys} * (sizeof(uint64_t) + kDim * sizeof(float))),
              [&] { return many->Measure(1, spread, options.window_ms); },
              [&] { return one->Measure(1, plain, options.window_ms); }));
      add(std::move(row));
    }
  }
  return absl::OkStatus();
}

absl::Status AddClients(const Options& options, uint32_t clients, uint64_t bytes, const AddRow& add) {
  std::unique_ptr<PsPair> ps;
  for (const auto operation : {ClientOperation::kPush, ClientOperation::kPull}) {
    const std::string name = absl::StrCat(kBench, "/", NameOf(operation), "/", SizeText(bytes), "/clients", clients);
    if (!IsWanted(options, name)) continue;
    if (ps == nullptr) {
      const DenseWork work{bytes, 16, kAloneDepth, "dense", std::max(bytes, kClientMemoryBytes)};
      LODESTONE_ASSIGN_OR_RETURN(
          ps, PsPair::Start(options, kClientShards, clients,
                            [&](uint32_t, const v1::Config& config) { return DenseLoad(config, work); }));
    }
    Order each;
    each.operation = static_cast<uint32_t>(operation);
    Order alone = each;
    alone.depth = kAloneDepth;
    const int window_ms = WindowMs(options, clients, bytes);
    LODESTONE_ASSIGN_OR_RETURN(
        Row row, MeasureInTurns(
                     options, kBench, name, BytesScale(bytes), [&] { return ps->Measure(clients, each, window_ms); },
                     [&] { return ps->Measure(1, alone, window_ms); }));
    row.values[kServerMemory] = std::vector<double>(options.runs, 1e-6 * static_cast<double>(ps->ServerBytes()));
    add(std::move(row));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunScale(const Options& given, const AddRow& add) {
  Options options = given;
  options.sets.insert(options.sets.begin(), "cluster.workers=256");  // A place for each client.
  if (options.quick) {
    LODESTONE_RETURN_IF_ERROR(AddTables(options, 30, add));
    return AddClients(options, 4, 4 << 10, add);
  }
  for (const uint32_t tables : {30u, 1000u}) LODESTONE_RETURN_IF_ERROR(AddTables(options, tables, add));
  for (const uint64_t bytes : {uint64_t{4} << 10, uint64_t{1} << 20}) {
    for (const uint32_t clients : {16u, 200u}) LODESTONE_RETURN_IF_ERROR(AddClients(options, clients, bytes, add));
  }
  return absl::OkStatus();
}

}  // namespace lodestone::bench
