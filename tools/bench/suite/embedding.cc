// embedding: batches of random rows of a large table, beside the least that a server of rows over gRPC does; beside raw
// TCP that moves the same bytes; of ten and a hundred million rows, beside a million; by several clients, beside one.
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
constexpr size_t kRawMemoryBytes = 64 << 20;  // What the limit's raw TCP sends from and receives into, as in dense.
constexpr uint64_t kMillion = 1'000'000;

// A table, and how its rows are updated; the limit adds gradients to its rows, as SGD does.
struct TableCase {
  uint64_t rows = 0;
  uint32_t dim = 0;
  bool adagrad = true;
};

std::string NameOf(const TableCase& rows) {
  return absl::StrCat(rows.rows / 1000, "Krows/dim", rows.dim, rows.adagrad ? "" : "/sgd");
}

RowsWork WorkOf(const TableCase& rows) {
  RowsWork work;
  work.rows = rows.rows;
  work.dim = rows.dim;
  work.keys = kKeys;
  work.depth_max = kDepthMax;
  work.adagrad = rows.adagrad;
  return work;
}

// Memory that a table takes at most: with Adagrad's state, index and slack; and that the minimal server's takes.
uint64_t TableBytes(const TableCase& rows) { return rows.rows * (2 * rows.dim * sizeof(float) + 64) * 3 / 2; }
uint64_t MinimalBytes(const TableCase& rows) { return rows.rows * (2 * rows.dim * sizeof(float) + 64); }

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

// Whether the machine has room for so much, which the table and what it is measured beside take; says so if not.
bool HasRoom(const TableCase& rows, uint64_t bytes) {
  const uint64_t available = AvailableBytes();
  if (available == 0 || available >= bytes) return true;
  std::fprintf(stderr, "bench: embedding: %s is left out: it takes up to %s, the machine has %s\n",
               NameOf(rows).c_str(), SizeText(bytes >> 20 << 20).c_str(), SizeText(available >> 20 << 20).c_str());
  return false;
}

// A ps with the table, filled, and clients.
absl::StatusOr<std::unique_ptr<PsPair>> StartPs(const Options& options, const TableCase& rows, uint32_t clients = 1) {
  std::fprintf(stderr, "bench: embedding: filling %s\n", NameOf(rows).c_str());
  const RowsWork work = WorkOf(rows);
  return PsPair::Start(options, kDefaultShards, clients, [&](uint32_t client, const v1::Config& config) {
    RowsWork own = work;  // Other keys than the others'.
    own.first_draw = uint64_t{client} << 40;
    own.fills = client == 0;
    return RowsLoad(config, own);
  });
}

struct Case {
  ClientOperation operation;
  uint32_t depth;
  std::string name;
};

absl::Status AddRows(const Options& options, const TableCase& rows, const AddRow& add) {
  const std::string table = NameOf(rows);
  std::vector<Case> cases;
  for (const auto operation : {ClientOperation::kPull, ClientOperation::kPush, ClientOperation::kPullThenPush}) {
    for (const uint32_t depth : {1u, kDepthMax}) {
      Case row{operation, depth, absl::StrCat("embedding/", NameOf(operation), "/", table, "/depth", depth)};
      if (IsWanted(options, row.name)) cases.push_back(std::move(row));
    }
  }
  if (cases.empty()) return absl::OkStatus();
  if (!HasRoom(rows, TableBytes(rows) + MinimalBytes(rows))) return absl::OkStatus();
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<MinimalPair> minimal, MinimalPair::Start(WorkOf(rows)));
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<PsPair> ps, StartPs(options, rows));
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

// Pulls of wide rows, beside raw TCP that moves the same bytes.
absl::Status AddBytes(const Options& options, const TableCase& rows, const AddRow& add) {
  std::unique_ptr<PsPair> ps;
  std::unique_ptr<RawPair> raw;
  for (const uint32_t depth : {1u, kDepthMax}) {
    const std::string name = absl::StrCat("embedding/pull/", NameOf(rows), "/depth", depth, "/tcp");
    if (!IsWanted(options, name)) continue;
    if (ps == nullptr) {
      if (!HasRoom(rows, TableBytes(rows) + 2 * kRawMemoryBytes)) return absl::OkStatus();
      LODESTONE_ASSIGN_OR_RETURN(raw, RawPair::Start(Transport::kTcp, 1, kRawMemoryBytes));
      LODESTONE_ASSIGN_OR_RETURN(ps, StartPs(options, rows));
    }
    const Order order = OrderOf(ClientOperation::kPull, depth, rows.dim);
    LODESTONE_ASSIGN_OR_RETURN(Row row, MeasureInTurns(
                                            options, kBench, name, BytesScale(PayloadBytes(order)),
                                            [&] { return ps->Measure(1, order, options.window_ms); },
                                            [&] { return raw->Measure(1, order, options.window_ms); }));
    add(std::move(row));
  }
  return absl::OkStatus();
}

// Rows of a large table, beside those of a table of a million rows.
absl::Status AddLarge(const Options& options, const TableCase& rows, const AddRow& add) {
  std::unique_ptr<PsPair> large, small;
  for (const auto operation : {ClientOperation::kPull, ClientOperation::kPush}) {
    const std::string name =
        absl::StrCat("embedding/", NameOf(operation), "/", NameOf(rows), "/depth", kDepthMax, "/large");
    if (!IsWanted(options, name)) continue;
    if (large == nullptr) {
      TableCase million = rows;
      million.rows = kMillion;
      if (!HasRoom(rows, TableBytes(rows) + TableBytes(million))) return absl::OkStatus();
      LODESTONE_ASSIGN_OR_RETURN(small, StartPs(options, million));
      LODESTONE_ASSIGN_OR_RETURN(large, StartPs(options, rows));
    }
    const Order order = OrderOf(operation, kDepthMax, rows.dim);
    LODESTONE_ASSIGN_OR_RETURN(Row row, MeasureInTurns(
                                            options, kBench, name, KeysScale(kKeys, PayloadBytes(order)),
                                            [&] { return large->Measure(1, order, options.window_ms); },
                                            [&] { return small->Measure(1, order, options.window_ms); }));
    add(std::move(row));
  }
  return absl::OkStatus();
}

// Several clients with one operation outstanding each, beside one client with four.
absl::Status AddClients(const Options& given, const TableCase& rows, uint32_t clients, const AddRow& add) {
  Options options = given;
  options.sets.insert(options.sets.begin(), "cluster.workers=32");  // A place for each client.
  std::unique_ptr<PsPair> ps;
  for (const auto operation : {ClientOperation::kPull, ClientOperation::kPush, ClientOperation::kPullThenPush}) {
    const std::string name = absl::StrCat("embedding/", NameOf(operation), "/", NameOf(rows), "/clients", clients);
    if (!IsWanted(options, name)) continue;
    if (ps == nullptr) {
      if (!HasRoom(rows, TableBytes(rows))) return absl::OkStatus();
      LODESTONE_ASSIGN_OR_RETURN(ps, StartPs(options, rows, clients));
    }
    const Order each = OrderOf(operation, 1, rows.dim);
    const Order alone = OrderOf(operation, kDepthMax, rows.dim);
    LODESTONE_ASSIGN_OR_RETURN(Row row, MeasureInTurns(
                                            options, kBench, name, KeysScale(kKeys, PayloadBytes(each)),
                                            [&] { return ps->Measure(clients, each, options.window_ms); },
                                            [&] { return ps->Measure(1, alone, options.window_ms); }));
    add(std::move(row));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunEmbedding(const Options& options, const AddRow& add) {
  if (options.quick) {
    LODESTONE_RETURN_IF_ERROR(AddRows(options, {100'000, 16}, add));
    return AddClients(options, {100'000, 16}, 4, add);
  }
  for (const TableCase& rows : {TableCase{kMillion, 16},
                                {kMillion, 16, /*adagrad=*/false},
                                {kMillion, 64},
                                {10 * kMillion, 16},
                                {10 * kMillion, 64}}) {
    LODESTONE_RETURN_IF_ERROR(AddRows(options, rows, add));
  }
  for (const uint32_t clients : {4u, 16u}) {
    LODESTONE_RETURN_IF_ERROR(AddClients(options, {kMillion, 16}, clients, add));
  }
  for (const uint32_t dim : {64u, 128u}) LODESTONE_RETURN_IF_ERROR(AddBytes(options, {kMillion, dim}, add));
  for (const uint64_t millions : {10, 100}) {
    LODESTONE_RETURN_IF_ERROR(AddLarge(options, {millions * kMillion, 4}, add));
  }
  return absl::OkStatus();
}

}  // namespace lodestone::bench
