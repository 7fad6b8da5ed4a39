// broadcast: one pusher, many subscribers, beside a raw server that receives and sends on the same bytes.
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
  return absl::OkStatus();
}

}  // namespace lodestone::bench
