// dense: pushes and pulls of dense tables, beside raw TCP that moves the same bytes. push-pull: both in one exchange,
// beside one after the other.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "tools/bench/harness/stats.h"
#include "tools/bench/load/client_load.h"
#include "tools/bench/load/pairs.h"
#include "tools/bench/suite/suites.h"

namespace lodestone::bench {
namespace {

constexpr char kBench[] = "dense";
constexpr uint32_t kShards = 4;             // So that a message of 1 MiB is one message of four parts.
constexpr uint64_t kTotalBytes = 64 << 20;  // Of the tables together, …
constexpr uint64_t kTablesMax = 1024;       // … unless they were more than these.
constexpr uint64_t kHeadBytes = 64;         // Of a request or reply without payload, about.
constexpr uint64_t kLarge = 16 << 20;       // From here on, only one client and longer windows.

// A row's kind of load.
struct Case {
  ClientOperation operation;
  uint32_t depth;
  uint32_t clients;
};

std::vector<Case> CasesOf(const Options& options, uint64_t bytes) {
  if (bytes == 64) return {{ClientOperation::kPull, 1, 1}, {ClientOperation::kPush, 1, 1}};
  std::vector<Case> cases;
  for (const auto operation : {ClientOperation::kPush, ClientOperation::kPull, ClientOperation::kPushPull}) {
    // A client that pushes more waits for the acknowledgements, which it would take itself.
    const uint32_t deep = static_cast<uint32_t>(std::min<uint64_t>(8, limits::kPushBytesInFlightMax / bytes));
    for (const uint32_t depth : {1u, deep}) cases.push_back({operation, depth, 1});
    if (options.quick || bytes >= kLarge) continue;
    for (const uint32_t clients : {2u, 4u}) cases.push_back({operation, 8, clients});
  }
  return cases;
}

// A window in which every client ends several operations even at a speed of 1 GB/s.
int WindowMs(const Options& options, uint64_t bytes, const Case& row) {
  const double seconds = 4e-9 * static_cast<double>(bytes) * row.depth * row.clients;
  return options.quick ? options.window_ms : std::max(options.window_ms, static_cast<int>(1e3 * seconds));
}

absl::Status AddRows(const Options& options, uint64_t bytes, const AddRow& add) {
  const auto name_of = [bytes](const Case& row) {
    return absl::StrCat("dense/", NameOf(row.operation), "/", SizeText(bytes), "/depth", row.depth, "/clients",
                        row.clients);
  };
  std::vector<Case> cases = CasesOf(options, bytes);
  std::erase_if(cases, [&](const Case& row) { return !IsWanted(options, name_of(row)); });
  if (cases.empty()) return absl::OkStatus();
  uint32_t clients = 1;
  for (const Case& row : cases) clients = std::max(clients, row.clients);
  const DenseWork work{bytes, static_cast<uint32_t>(std::clamp<uint64_t>(kTotalBytes / bytes, 1, kTablesMax)), 8};
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<RawPair> raw,
                             RawPair::Start(Transport::kTcp, clients, std::max(bytes, kTotalBytes)));
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<PsPair> ps,
                             PsPair::Start(options, kShards, clients, [&](uint32_t, const v1::Config& config) {
                               return DenseLoad(config, work);
                             }));
  for (const Case& row : cases) {
    Order order;
    order.operation = static_cast<uint32_t>(row.operation);
    order.depth = row.depth;
    order.request_bytes = row.operation == ClientOperation::kPull ? kHeadBytes : bytes;
    order.reply_bytes = row.operation == ClientOperation::kPush ? kHeadBytes : bytes;
    const int window_ms = WindowMs(options, bytes, row);
    LODESTONE_ASSIGN_OR_RETURN(
        Row measured,
        MeasureInTurns(
            options, kBench, name_of(row), BytesScale(row.operation == ClientOperation::kPushPull ? 2 * bytes : bytes),
            [&] { return ps->Measure(row.clients, order, window_ms); },
            [&] { return raw->Measure(row.clients, order, window_ms); }));
    add(std::move(measured));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunPushPull(const Options& options, const AddRow& add) {
  std::vector<uint64_t> sizes = {4 << 10, 64 << 10, 1 << 20, 4 << 20};
  if (options.quick) sizes = {64 << 10};
  for (const uint64_t bytes : sizes) {
    std::unique_ptr<PsPair> ps;
    for (const uint32_t depth : {1u, 8u}) {
      const std::string name = absl::StrCat("push-pull/", SizeText(bytes), "/depth", depth);
      if (!IsWanted(options, name)) continue;
      if (ps == nullptr) {
        const auto tables = static_cast<uint32_t>(std::clamp<uint64_t>(kTotalBytes / bytes, 1, kTablesMax));
        LODESTONE_ASSIGN_OR_RETURN(ps, PsPair::Start(options, kShards, 1, [&](uint32_t, const v1::Config& config) {
                                     return DenseLoad(config, {bytes, tables, 8});
                                   }));
      }
      Order in_one;
      in_one.operation = static_cast<uint32_t>(ClientOperation::kPushPull);
      in_one.depth = depth;
      Order in_turn = in_one;
      in_turn.operation = static_cast<uint32_t>(ClientOperation::kPushThenPull);
      const int window_ms = WindowMs(options, bytes, {ClientOperation::kPushPull, depth, 1});
      LODESTONE_ASSIGN_OR_RETURN(Row row, MeasureInTurns(
                                              options, "push-pull", name, BytesScale(2 * bytes),
                                              [&] { return ps->Measure(1, in_one, window_ms); },
                                              [&] { return ps->Measure(1, in_turn, window_ms); }));
      add(std::move(row));
    }
  }
  return absl::OkStatus();
}

absl::Status RunDense(const Options& options, const AddRow& add) {
  std::vector<uint64_t> sizes = {64, 4 << 10, 64 << 10, 1 << 20, 4 << 20, 64 << 20};
  if (options.quick) sizes = {64, 4 << 10, 1 << 20};
  for (const uint64_t bytes : sizes) LODESTONE_RETURN_IF_ERROR(AddRows(options, bytes, add));
  return absl::OkStatus();
}

}  // namespace lodestone::bench
