// broadcast: one pusher, many subscribers, beside a raw server that receives and sends on the same bytes; and what
// pushes lose beside broadcasts: those of a client that is no subscriber, with subscribers beside without any.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tools/bench/harness/stats.h"
#include "tools/bench/load/broadcast_load.h"
#include "tools/bench/load/pairs.h"
#include "tools/bench/suite/suites.h"

namespace lodestone::bench {
namespace {

constexpr uint32_t kShards = 4;
constexpr uint64_t kTableBytes = 4 << 20;
constexpr uint32_t kPushesAhead = 2;
constexpr uint32_t kPushDepth = 8;

// The pushes of a client beside `subscribers` that receive what they change. Only its work and the ps's are measured;
// the subscribers, which take whatever comes, use the same processors.
absl::Status AddPushes(const Options& options, uint64_t bytes, uint32_t subscribers, const AddRow& add) {
  const std::string name =
      absl::StrCat("broadcast/push/", SizeText(bytes), "/depth", kPushDepth, "/subscribers", subscribers);
  if (!IsWanted(options, name)) return absl::OkStatus();
  const auto start = [&](uint32_t others) {
    return PsPair::Start(options, kShards, 1 + others, [bytes](uint32_t client, const v1::Config& config) {
      return client == 0 ? PlainPushLoad(config, bytes) : BroadcastLoad(config, bytes, /*pusher=*/false);
    });
  };
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<PsPair> alone, start(0));
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<PsPair> beside, start(subscribers));
  Order order;
  order.depth = kPushDepth;
  LODESTONE_ASSIGN_OR_RETURN(Row row, MeasureInTurns(
                                          options, "broadcast", name, BytesScale(bytes),
                                          [&] { return beside->Measure(1, order, options.window_ms); },
                                          [&] { return alone->Measure(1, order, options.window_ms); }));
  add(std::move(row));
  return absl::OkStatus();
}

}  // namespace

absl::Status RunBroadcast(const Options& options, const AddRow& add) {
  Order order;
  order.depth = kPushesAhead;
  Scale scale = BytesScale(1);  // What counts is bytes received.
  scale.count_messages = false;
  for (const uint32_t subscribers : options.quick ? std::vector<uint32_t>{2} : std::vector<uint32_t>{1, 2, 4, 8, 16}) {
    const std::string name = absl::StrCat("broadcast/", SizeText(kTableBytes), "/subscribers", subscribers);
    if (!IsWanted(options, name)) continue;
    LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<RawPair> raw, RawPair::StartFanout(subscribers, kTableBytes));
    LODESTONE_ASSIGN_OR_RETURN(
        const std::unique_ptr<PsPair> ps,
        PsPair::Start(options, kShards, subscribers, [](uint32_t client, const v1::Config& config) {
          return BroadcastLoad(config, kTableBytes, /*pusher=*/client == 0);
        }));
    LODESTONE_ASSIGN_OR_RETURN(Row row, MeasureInTurns(
                                            options, "broadcast", name, scale,
                                            [&] { return ps->Measure(subscribers, order, options.window_ms); },
                                            [&] { return raw->Measure(subscribers, order, options.window_ms); }));
    add(std::move(row));
  }
  for (const uint64_t bytes : {uint64_t{64} << 10, kTableBytes}) {
    LODESTONE_RETURN_IF_ERROR(AddPushes(options, bytes, options.quick ? 2 : 8, add));
  }
  return absl::OkStatus();
}

}  // namespace lodestone::bench
