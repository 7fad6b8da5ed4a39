// durability: pushes at each durability that the configuration offers.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "google/protobuf/descriptor.h"
#include "tools/bench/client_load.h"
#include "tools/bench/pairs.h"
#include "tools/bench/suites.h"

namespace lodestone::bench {
namespace {

constexpr uint32_t kShards = 4;
constexpr uint64_t kBytes = 64 << 10;
constexpr uint32_t kTables = 1024;
constexpr uint64_t kHeadBytes = 64;
constexpr uint64_t kMemoryBytes = 64 << 20;

// A durability and how to configure it.
struct Mode {
  std::string name;
  std::vector<std::string> sets;
};

// The values of the configuration's field `durability`; memory alone in a build that has no such field.
std::vector<Mode> Modes() {
  const google::protobuf::Descriptor* config = v1::Config::descriptor();
  for (int i = 0; i < config->field_count(); ++i) {
    const google::protobuf::Descriptor* section = config->field(i)->message_type();
    const auto* field = section == nullptr ? nullptr : section->FindFieldByName("durability");
    if (field == nullptr || field->enum_type() == nullptr) continue;
    std::vector<Mode> modes;
    for (int v = 0; v < field->enum_type()->value_count(); ++v) {
      const std::string& value = field->enum_type()->value(v)->name();
      modes.push_back({value, {absl::StrCat(config->field(i)->name(), ".durability=", value)}});
    }
    return modes;
  }
  std::fprintf(stderr,
               "bench: durability: this build keeps parameters in memory only; process, machine and replica are not in "
               "it and have no rows\n");
  return {{"memory", {}}};
}

absl::Status AddRows(const Options& options, const RawPair& raw, const Mode& mode, const AddRow& add) {
  Options of_mode = options;
  of_mode.sets.insert(of_mode.sets.end(), mode.sets.begin(), mode.sets.end());
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<PsPair> ps,
                             PsPair::Start(of_mode, kShards, 1, [](uint32_t, const v1::Config& config) {
                               return DenseLoad(config, {kBytes, kTables, 8});
                             }));
  for (const uint32_t depth : {1u, 8u}) {
    Order order;
    order.operation = static_cast<uint32_t>(ClientOperation::kPush);
    order.depth = depth;
    order.request_bytes = kBytes;
    order.reply_bytes = kHeadBytes;
    LODESTONE_ASSIGN_OR_RETURN(
        Row row,
        MeasureInTurns(
            options, "durability", absl::StrCat("durability/", mode.name, "/push/", SizeText(kBytes), "/depth", depth),
            BytesScale(kBytes), [&] { return ps->Measure(1, order, options.window_ms); },
            [&] { return raw.Measure(1, order, options.window_ms); }));
    add(std::move(row));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunDurability(const Options& options, const AddRow& add) {
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<RawPair> raw, RawPair::Start(Transport::kTcp, 1, kMemoryBytes));
  for (const Mode& mode : Modes()) LODESTONE_RETURN_IF_ERROR(AddRows(options, *raw, mode, add));
  return absl::OkStatus();
}

}  // namespace lodestone::bench
