// durability: pushes at each durability, in turns, beside raw TCP and a file that is appended to on the same disk.
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/types.h"
#include "tools/bench/harness/local_ps.h"
#include "tools/bench/harness/stats.h"
#include "tools/bench/load/client_load.h"
#include "tools/bench/load/disk.h"
#include "tools/bench/load/pairs.h"
#include "tools/bench/suite/suites.h"

namespace lodestone::bench {
namespace {

constexpr char kBench[] = "durability";
constexpr std::array kModes = {"memory", "process", "machine", "replica"};  // The last one with two ps.
constexpr uint32_t kShards = 4;             // So that a message of 1 MiB is one message of four parts.
constexpr uint64_t kTotalBytes = 64 << 20;  // Of the dense tables together.
constexpr uint32_t kKeys = 4096;
constexpr uint32_t kDim = 16;
constexpr uint64_t kHeadBytes = 64;

// What is pushed.
struct Work {
  std::string name;  // In rows.
  uint32_t shards;   // 0: the default number.
  Scale scale;
  uint64_t bytes;  // Of a push.
  PsPair::MakeLoad load;
};

std::vector<Work> Works(const Options& options) {
  std::vector<Work> works;
  for (const uint64_t bytes : {64 << 10, 1 << 20}) {
    const auto tables = static_cast<uint32_t>(kTotalBytes / bytes);
    works.push_back({SizeText(bytes), kShards, BytesScale(bytes), bytes, [=](uint32_t, const v1::Config& config) {
                       return DenseLoad(config, {bytes, tables, 8});
                     }});
  }
  const uint64_t rows = options.quick ? 20'000 : 1'000'000;
  const uint64_t bytes = kKeys * (sizeof(Key) + kDim * sizeof(float));
  works.push_back(
      {absl::StrCat(kKeys, "rows"), 0, KeysScale(kKeys, bytes), bytes, [=](uint32_t, const v1::Config& config) {
         return RowsLoad(config, {rows, kDim, kKeys, 8});
       }});
  return works;
}

// A ps for each mode, or two, all of them there at the same time.
absl::StatusOr<std::vector<std::unique_ptr<PsPair>>> StartModes(const Options& options, const TemporaryFolder& folder,
                                                                const Work& work) {
  std::vector<std::unique_ptr<PsPair>> all;
  for (const std::string mode : kModes) {
    Options of_mode = options;
    of_mode.sets.push_back(absl::StrCat("cluster.durability=", mode));
    if (mode == "replica") {
      of_mode.sets.push_back("cluster.servers=2");
      of_mode.sets.push_back("cluster.replicas=2");
    }
    if (mode != "memory") {
      // What is measured is the log alone.
      for (const std::string& set : {absl::StrCat("server.data_dir=", folder.File(mode)),
                                     std::string("checkpoint.every_ms=0"), std::string("checkpoint.at_exit=false")}) {
        of_mode.sets.push_back(set);
      }
    }
    LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<PsPair> ps, PsPair::Start(of_mode, work.shards, 1, work.load));
    all.push_back(std::move(ps));
  }
  return all;
}

absl::Status AddRows(const Options& options, const RawPair& raw, const Work& work, const AddRow& add) {
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<TemporaryFolder> folder, TemporaryFolder::Create(options.folder));
  LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<Peer> appends, Peer::Start("the disk", AppendLoad(folder->File("plain"))));
  const std::unique_ptr<Peer> disk[] = {std::move(appends)};
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<std::unique_ptr<PsPair>> ps, StartModes(options, *folder, work));
  for (const uint32_t depth : {1u, 8u}) {
    Order order;
    order.operation = static_cast<uint32_t>(ClientOperation::kPush);
    order.depth = depth;
    order.request_bytes = work.bytes;
    order.reply_bytes = kHeadBytes;
    const auto name = [&](const std::string& mode) {
      return absl::StrCat(kBench, "/", mode, "/push/", work.name, "/depth", depth);
    };
    std::vector<Measurement> measurements = {
        [&] { return raw.Measure(1, order, options.window_ms); },
        [&] { return MeasureWindow(disk, {order}, 0, options.window_ms); },
    };
    for (const auto& pair : ps) {
      measurements.push_back([&] { return pair->Measure(1, order, options.window_ms); });
    }
    LODESTONE_ASSIGN_OR_RETURN(const auto samples, TakeTurns(options, name("*"), measurements));
    add(MakeRow(kBench, name("disk"), work.scale, samples[1], {}));
    const std::vector<Sample>& memory = samples[2];
    add(MakeRow(kBench, name(kModes[0]), work.scale, memory, samples[0]));
    for (size_t i = 1; i < kModes.size(); ++i) {
      add(MakeRow(kBench, name(kModes[i]), work.scale, samples[2 + i], memory));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunDurability(const Options& options, const AddRow& add) {
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<RawPair> raw, RawPair::Start(Transport::kTcp, 1, kTotalBytes));
  for (const Work& work : Works(options)) LODESTONE_RETURN_IF_ERROR(AddRows(options, *raw, work, add));
  return absl::OkStatus();
}

}  // namespace lodestone::bench
