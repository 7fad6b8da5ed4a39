// limit: what memory and sockets do without us.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tools/bench/harness/stats.h"
#include "tools/bench/load/pairs.h"
#include "tools/bench/load/raw_load.h"
#include "tools/bench/suite/suites.h"

namespace lodestone::bench {
namespace {

constexpr char kBench[] = "limit";
constexpr uint64_t kAckBytes = 16;
constexpr uint64_t kMemoryBytes = 64 << 20;

struct Direction {
  const char* name;
  bool out;
  bool back;
};

absl::Status AddExchanges(const Options& options, const RawPair& pair, absl::string_view transport, uint64_t bytes,
                          const AddRow& add) {
  for (const Direction& direction :
       {Direction{"push", true, false}, {"pull", false, true}, {"push-pull", true, true}}) {
    for (const uint32_t depth : {1u, 8u}) {
      Order order;
      order.depth = depth;
      order.request_bytes = direction.out ? bytes : kAckBytes;
      order.reply_bytes = direction.back ? bytes : kAckBytes;
      const uint64_t moved = direction.out && direction.back ? 2 * bytes : bytes;
      LODESTONE_ASSIGN_OR_RETURN(
          Row row, MeasureInTurns(
                       options, kBench,
                       absl::StrCat("limit/", transport, "/", direction.name, "/", SizeText(bytes), "/depth", depth),
                       BytesScale(moved), [&] { return pair.Measure(1, order, options.window_ms); }, nullptr));
      add(std::move(row));
    }
  }
  return absl::OkStatus();
}

absl::Status AddMemcpy(const Options& options, const std::vector<uint64_t>& sizes, const AddRow& add) {
  std::vector<std::unique_ptr<Peer>> peers(1);
  LODESTONE_ASSIGN_OR_RETURN(peers[0], Peer::Start("memcpy", MemcpyLoad(2 * kMemoryBytes)));
  for (const uint64_t bytes : sizes) {
    Order order;
    order.request_bytes = bytes;
    LODESTONE_ASSIGN_OR_RETURN(Row row,
                               MeasureInTurns(
                                   options, kBench, absl::StrCat("limit/memcpy/", SizeText(bytes)), BytesScale(bytes),
                                   [&] { return MeasureWindow(peers, {order}, 0, options.window_ms); }, nullptr));
    add(std::move(row));
  }
  return absl::OkStatus();
}

absl::Status AddFanout(const Options& options, uint32_t subscribers, uint64_t bytes, const AddRow& add) {
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<RawPair> pair, RawPair::StartFanout(subscribers, bytes));
  Order order;
  order.depth = 2;
  Scale scale = BytesScale(1);
  scale.count_messages = false;
  LODESTONE_ASSIGN_OR_RETURN(
      Row row, MeasureInTurns(
                   options, kBench, absl::StrCat("limit/fanout/", SizeText(bytes), "/subscribers", subscribers), scale,
                   [&] { return pair->Measure(subscribers, order, options.window_ms); }, nullptr));
  add(std::move(row));
  return absl::OkStatus();
}

}  // namespace

absl::Status RunLimit(const Options& options, const AddRow& add) {
  std::vector<uint64_t> sizes = {64, 4 << 10, 64 << 10, 1 << 20, 4 << 20, 64 << 20};
  if (options.quick) sizes = {4 << 10, 1 << 20};
  LODESTONE_RETURN_IF_ERROR(AddMemcpy(options, sizes, add));
  for (const Transport transport : {Transport::kTcp, Transport::kUnix}) {
    LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<RawPair> pair, RawPair::Start(transport, 1, kMemoryBytes));
    for (const uint64_t bytes : sizes) {
      LODESTONE_RETURN_IF_ERROR(
          AddExchanges(options, *pair, transport == Transport::kTcp ? "tcp" : "unix", bytes, add));
    }
  }
  for (const uint32_t subscribers : options.quick ? std::vector<uint32_t>{2} : std::vector<uint32_t>{1, 8}) {
    LODESTONE_RETURN_IF_ERROR(AddFanout(options, subscribers, 4 << 20, add));
  }
  return absl::OkStatus();
}

}  // namespace lodestone::bench
