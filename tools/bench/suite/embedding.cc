// embedding: batches of random rows of a large table, beside raw TCP that moves the same bytes.
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
constexpr uint64_t kHeadBytes = 64;  // Of a reply without payload, about.
constexpr uint64_t kMemoryBytes = 64 << 20;
constexpr uint64_t kDefaultShards = 0;

// Memory that a table of so many rows takes with Adagrad's state, index and slack, at most.
uint64_t TableBytes(uint64_t rows, uint32_t dim) { return rows * (2 * dim * sizeof(float) + 64) * 3 / 2; }

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

absl::Status AddRows(const Options& options, const RawPair& raw, uint64_t rows, uint32_t dim, const AddRow& add) {
  const std::string table = absl::StrCat(rows / 1000, "Krows/dim", dim);
  struct Case {
    ClientOperation operation;
    uint32_t depth;
    std::string name;
  };
  std::vector<Case> cases;
  for (const auto operation : {ClientOperation::kPull, ClientOperation::kPush, ClientOperation::kPullThenPush}) {
    for (const uint32_t depth : {1u, 4u}) {
      Case row{operation, depth, absl::StrCat("embedding/", NameOf(operation), "/", table, "/depth", depth)};
      if (IsWanted(options, row.name)) cases.push_back(std::move(row));
    }
  }
  if (cases.empty()) return absl::OkStatus();
  if (const uint64_t available = AvailableBytes(); available > 0 && available < TableBytes(rows, dim)) {
    std::fprintf(stderr, "bench: embedding: %s is left out: it takes up to %s, the machine has %s\n", table.c_str(),
                 SizeText(TableBytes(rows, dim) >> 20 << 20).c_str(), SizeText(available >> 20 << 20).c_str());
    return absl::OkStatus();
  }
  std::fprintf(stderr, "bench: embedding: filling %s\n", table.c_str());
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<PsPair> ps,
                             PsPair::Start(options, kDefaultShards, 1, [&](uint32_t, const v1::Config& config) {
                               return RowsLoad(config, {rows, dim, kKeys, 4});
                             }));
  for (const Case& one : cases) {
    const Order order = OrderOf(one.operation, one.depth, dim);
    LODESTONE_ASSIGN_OR_RETURN(Row row, MeasureInTurns(
                                            options, kBench, one.name, KeysScale(kKeys, PayloadBytes(order)),
                                            [&] { return ps->Measure(1, order, options.window_ms); },
                                            [&] { return raw.Measure(1, order, options.window_ms); }));
    add(std::move(row));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunEmbedding(const Options& options, const AddRow& add) {
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<RawPair> raw, RawPair::Start(Transport::kTcp, 1, kMemoryBytes));
  if (options.quick) return AddRows(options, *raw, 100'000, 16, add);
  for (const uint64_t rows : {1'000'000, 10'000'000}) {
    for (const uint32_t dim : {16, 64}) LODESTONE_RETURN_IF_ERROR(AddRows(options, *raw, rows, dim, add));
  }
  return absl::OkStatus();
}

}  // namespace lodestone::bench
