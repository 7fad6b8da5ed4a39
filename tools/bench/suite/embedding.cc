// embedding: batches of random rows of a large table, beside the least that a server of rows over gRPC does.
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tools/bench/harness/stats.h"
#include "tools/bench/load/client_load.h"
#include "tools/bench/load/pairs.h"
#include "tools/bench/suite/suites.h"

namespace lodestone::bench {
namespace {

constexpr char kBench[] = "embedding";
constexpr uint32_t kKeys = 4096;
constexpr uint32_t kDepthMax = 4;
constexpr uint64_t kHeadBytes = 64;  // Of a reply without payload, about.
constexpr uint64_t kDefaultShards = 0;

// A table, and how its rows are updated; the limit adds gradients to its rows, as SGD does.
struct TableCase {
  uint64_t rows = 0;
  uint32_t dim = 0;
  bool adagrad = true;
};

// Memory that a table takes with Adagrad's state, index and slack, at most, and the limit's beside it.
uint64_t TableBytes(const TableCase& rows) {
  const uint64_t value_bytes = rows.dim * sizeof(float);
  return rows.rows * ((2 * value_bytes + 64) * 3 / 2 + 2 * value_bytes + 64);
}

// Memory that the machine could still give, in bytes; 0 if it does not tell.
uint64_t AvailableBytes() {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  for (uint64_t kib = 0; file >> name >> kib; std::getline(file, unit)) {
    if (name == "MemAvailable:") return kib << 10;
  }
  return 0;
}

Order OrderOf(ClientOperation operation, uint32_t depth, uint32_t dim) {
  const uint64_t key_bytes = kKeys * sizeof(uint64_t);
  const uint64_t value_bytes = uint64_t{kKeys} * dim * sizeof(float);
  Order order;
  order.operation = static_cast<uint32_t>(operation);
  order.depth = depth;
  order.request_bytes = key_bytes + (operation == ClientOperation::kPush ? value_bytes : 0);
  order.reply_bytes = operation == ClientOperation::kPush ? kHeadBytes : value_bytes;
  if (operation == ClientOperation::kPullThenPush) {
    order.second_request_bytes = key_bytes + value_bytes;
    order.second_reply_bytes = kHeadBytes;
  }
  return order;
}

uint64_t PayloadBytes(const Order& order) {
  return order.request_bytes + order.reply_bytes + order.second_request_bytes + order.second_reply_bytes;
}

absl::Status AddRows(const Options& options, const TableCase& rows, const AddRow& add) {
  const std::string table = absl::StrCat(rows.rows / 1000, "Krows/dim", rows.dim, rows.adagrad ? "" : "/sgd");
  struct Case {
    ClientOperation operation;
    uint32_t depth;
    std::string name;
  };
  std::vector<Case> cases;
  for (const auto operation : {ClientOperation::kPull, ClientOperation::kPush, ClientOperation::kPullThenPush}) {
    for (const uint32_t depth : {1u, kDepthMax}) {
      Case row{operation, depth, absl::StrCat("embedding/", NameOf(operation), "/", table, "/depth", depth)};
      if (IsWanted(options, row.name)) cases.push_back(std::move(row));
    }
  }
  if (cases.empty()) return absl::OkStatus();
  if (const uint64_t available = AvailableBytes(); available > 0 && available < TableBytes(rows)) {
    std::fprintf(stderr, "bench: embedding: %s is left out: it takes up to %s, the machine has %s\n", table.c_str(),
                 SizeText(TableBytes(rows) >> 20 << 20).c_str(), SizeText(available >> 20 << 20).c_str());
    return absl::OkStatus();
  }
  std::fprintf(stderr, "bench: embedding: filling %s\n", table.c_str());
  RowsWork work;
  work.rows = rows.rows;
  work.dim = rows.dim;
  work.keys = kKeys;
  work.depth_max = kDepthMax;
  work.adagrad = rows.adagrad;
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<MinimalPair> minimal, MinimalPair::Start(work));
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<PsPair> ps,
                             PsPair::Start(options, kDefaultShards, 1,
                                           [&](uint32_t, const v1::Config& config) { return RowsLoad(config, work); }));
  for (const Case& one : cases) {
    const Order order = OrderOf(one.operation, one.depth, rows.dim);
    LODESTONE_ASSIGN_OR_RETURN(Row row, MeasureInTurns(
                                            options, kBench, one.name, KeysScale(kKeys, PayloadBytes(order)),
                                            [&] { return ps->Measure(1, order, options.window_ms); },
                                            [&] { return minimal->Measure(order, options.window_ms); }));
    add(std::move(row));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunEmbedding(const Options& options, const AddRow& add) {
  if (options.quick) return AddRows(options, {100'000, 16}, add);
  constexpr uint64_t kMillion = 1'000'000;
  for (const TableCase& rows : {TableCase{kMillion, 16},
                                {kMillion, 16, /*adagrad=*/false},
                                {kMillion, 64},
                                {10 * kMillion, 16},
                                {10 * kMillion, 64}}) {
    LODESTONE_RETURN_IF_ERROR(AddRows(options, rows, add));
  }
  return absl::OkStatus();
}

}  // namespace lodestone::bench
