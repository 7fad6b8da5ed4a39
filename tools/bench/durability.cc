// durability: pushes at each durability that the configuration offers.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "google/protobuf/descriptor.h"
#include "tools/bench/client_load.h"
#include "tools/bench/local_ps.h"
#include "tools/bench/pairs.h"
#include "tools/bench/suites.h"

namespace lodestone::bench {
namespace {

constexpr uint32_t kShards = 4;
constexpr uint64_t kBytes = 64 << 10;
constexpr uint32_t kTables = 1024;
constexpr uint64_t kHeadBytes = 64;
constexpr uint64_t kMemoryBytes = 64 << 20;

// Every value of cluster.durability but AUTO.
std::vector<std::string> Modes() {
  std::vector<std::string> modes;
  const google::protobuf::EnumDescriptor* const values = v1::ClusterConfig::Durability_descriptor();
  for (int i = 0; i < values->value_count(); ++i) {
    if (values->value(i)->number() != v1::ClusterConfig::AUTO) {
      modes.push_back(absl::AsciiStrToLower(values->value(i)->name()));
    }
  }
  return modes;
}

absl::Status AddRows(const Options& options, const RawPair& raw, const std::string& mode, const AddRow& add) {
  Options of_mode = options;
  of_mode.sets.push_back(absl::StrCat("cluster.durability=", mode));
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<TemporaryFolder> folder, TemporaryFolder::Create());
  if (mode != "memory") {
    // What is measured is the log alone.
    for (const std::string& set : {absl::StrCat("server.data_dir=", folder->File("data")),
                                   std::string("checkpoint.every_ms=0"), std::string("checkpoint.at_exit=false")}) {
      of_mode.sets.push_back(set);
    }
  }
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
            options, "durability", absl::StrCat("durability/", mode, "/push/", SizeText(kBytes), "/depth", depth),
            BytesScale(kBytes), [&] { return ps->Measure(1, order, options.window_ms); },
            [&] { return raw.Measure(1, order, options.window_ms); }));
    add(std::move(row));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunDurability(const Options& options, const AddRow& add) {
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<RawPair> raw, RawPair::Start(Transport::kTcp, 1, kMemoryBytes));
  for (const std::string& mode : Modes()) LODESTONE_RETURN_IF_ERROR(AddRows(options, *raw, mode, add));
  return absl::OkStatus();
}

}  // namespace lodestone::bench
