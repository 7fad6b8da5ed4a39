// checkpoint: checkpoints and loading beside plain files, pushes during a checkpoint, and the replay of a log.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/base/types.h"
#include "proto/admin.pb.h"
#include "tools/bench/harness/local_ps.h"
#include "tools/bench/harness/stats.h"
#include "tools/bench/load/client_load.h"
#include "tools/bench/load/disk.h"
#include "tools/bench/suite/suites.h"
#include "tools/psctl/client/admin_client.h"

namespace lodestone::bench {
namespace {

constexpr char kBench[] = "checkpoint";
constexpr char kWrite[] = "checkpoint/write/";  // Rows: how much follows.
constexpr char kLoad[] = "checkpoint/load/";
constexpr uint64_t kDenseBytes = 64 << 10;  // Of a dense push, and of its table.
constexpr uint32_t kDenseTables = 1024;
constexpr uint64_t kRestBytes = 16 << 20;  // Of a dense table that no push changes.
constexpr uint32_t kDim = 16;
constexpr uint32_t kKeys = 4096;
constexpr uint64_t kKeyBytes = sizeof(Key) + kDim * sizeof(float);  // Of a push.
constexpr uint64_t kRowBytes = 140;                                 // In a page: key, version, values and state.
constexpr double kRowsPerPage = 64;
constexpr int kAskEveryMs = 20;
constexpr int kTimeoutMs = 600'000;

// What is in the tables, about half of it rows.
struct Content {
  uint32_t rest_tables;
  uint64_t rows;
};
Content ContentOf(const Options& options) {
  const uint64_t bytes = static_cast<uint64_t>(options.state_mib) << 20;
  const uint64_t pushed = std::min(bytes / 2, kDenseBytes * kDenseTables);
  return {static_cast<uint32_t>(std::max<uint64_t>(1, (bytes / 2 - pushed) / kRestBytes)), bytes / 2 / kRowBytes};
}

// Two kinds of pushes.
struct Pushes {
  std::string name;
  uint32_t depth;
  Scale scale;
  size_t load;  // Index of the peer.
};

std::string DuringName(const Pushes& pushes) {
  return absl::StrCat(kBench, "/during/push/", pushes.name, "/depth", pushes.depth);
}

uint64_t ResidentBytes(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/statm"));
  uint64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// Has a checkpoint written and returns the status after it, of which push_bytes and resident_bytes are those pushed
// meanwhile, and the most while it was written.
absl::StatusOr<v1::StatusResponse> WriteCheckpoint(const std::string& address, pid_t pid) {
  LODESTONE_ASSIGN_OR_RETURN(const v1::StatusResponse before, psctl::FetchStatus(address, kTimeoutMs));
  uint64_t resident_max = 0;
  std::atomic<bool> done{false};
  std::thread watch([&] {
    for (; !done.load(); absl::SleepFor(absl::Milliseconds(2))) {
      resident_max = std::max(resident_max, ResidentBytes(pid));
    }
  });
  const absl::Status written = psctl::RequestCheckpoint(address, "", kTimeoutMs).status();
  done.store(true);
  watch.join();
  LODESTONE_RETURN_IF_ERROR(written);
  LODESTONE_ASSIGN_OR_RETURN(v1::StatusResponse status, psctl::FetchStatus(address, kTimeoutMs));
  status.mutable_server()->set_push_bytes(status.server().push_bytes() - before.server().push_bytes());
  status.mutable_server()->set_resident_bytes(resident_max);
  return status;
}

// The status of a ps once it serves its shards.
absl::StatusOr<v1::StatusResponse> AwaitReady(const std::string& address) {
  for (;; absl::SleepFor(absl::Milliseconds(kAskEveryMs))) {
    LODESTONE_ASSIGN_OR_RETURN(v1::StatusResponse status, psctl::FetchStatus(address, kTimeoutMs));
    if (status.server().shards_owned() > 0) return status;
  }
}

// A question to a ps, by a process that may use gRPC.
using Question = std::function<absl::StatusOr<v1::StatusResponse>()>;

absl::StatusOr<std::unique_ptr<Errand>> Begin(const std::string& name, const Question& question) {
  return Errand::Start(name, [&question]() -> absl::StatusOr<std::string> {
    LODESTONE_ASSIGN_OR_RETURN(const v1::StatusResponse status, question());
    return status.SerializeAsString();
  });
}

absl::StatusOr<v1::StatusResponse> End(Errand* errand) {
  LODESTONE_ASSIGN_OR_RETURN(const std::string result, errand->Wait());
  v1::StatusResponse status;
  if (status.ParseFromString(result)) return status;
  return absl::InternalError("a process of the benchmark's own answered nonsense");
}

absl::StatusOr<v1::StatusResponse> Ask(const LocalPs& ps) {
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<Errand> errand,
                             Begin("a question", [&ps] { return AwaitReady(ps.config().coordinator().address()); }));
  return End(errand.get());
}

// Options of a ps that writes no checkpoint unasked, and full ones only.
Options WithSets(const Options& options, std::vector<std::string> sets) {
  Options changed = options;
  sets.insert(sets.end(),
              {"checkpoint.every_ms=0", "checkpoint.at_exit=false", "checkpoint.full_every=1", "checkpoint.keep=1"});
  changed.sets.insert(changed.sets.end(), sets.begin(), sets.end());
  return changed;
}

Order OrderOf(uint32_t depth) {
  Order order;
  order.operation = static_cast<uint32_t>(ClientOperation::kPush);
  order.depth = depth;
  return order;
}

// One sample of several windows, one after the other.
void Append(const Sample& window, Sample* sum) {
  sum->seconds += window.seconds;
  sum->operations += window.operations;
  sum->client_cpu_seconds += window.client_cpu_seconds;
  sum->server_cpu_seconds += window.server_cpu_seconds;
  sum->latencies_us.insert(sum->latencies_us.end(), window.latencies_us.begin(), window.latencies_us.end());
}

// A ps with tables of options.state_mib, and clients that push to it.
class FullPs {
 public:
  static absl::StatusOr<std::unique_ptr<FullPs>> Start(const Options& options) {
    std::unique_ptr<FullPs> full(new FullPs(options));
    LODESTONE_RETURN_IF_ERROR(full->Fill());
    return full;
  }

  absl::Status AddPushRows(const Pushes& pushes, const AddRow& add);
  absl::Status AddWriteRow(const AddRow& add);
  absl::Status AddLoadRow(const AddRow& add);

 private:
  explicit FullPs(const Options& options) : options_(options) {}

  absl::Status Fill();
  std::span<const std::unique_ptr<Peer>> Load(size_t i) const { return std::span(loads_).subspan(i, 1); }
  absl::StatusOr<std::unique_ptr<Errand>> BeginCheckpoint() const {
    return Begin("a checkpoint", [this] { return WriteCheckpoint(ps_->config().coordinator().address(), ps_->pid()); });
  }
  // A checkpoint while nothing is pushed.
  absl::StatusOr<v1::StatusResponse> Checkpoint() const {
    LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<Errand> errand, BeginCheckpoint());
    return End(errand.get());
  }
  // Pushes as long as a checkpoint takes, in windows of which the last may be left out.
  absl::StatusOr<Sample> MeasureDuringCheckpoint(const Pushes& pushes, v1::StatusResponse* after) const;
  // Bytes of the blocks or pages that so many bytes of pushes have changed, each counted once.
  double ChangedBytes(const Pushes& pushes, uint64_t pushed_bytes) const;

  const Options options_;
  std::unique_ptr<TemporaryFolder> folder_;
  std::unique_ptr<LocalPs> ps_;
  std::vector<std::unique_ptr<Peer>> loads_;  // Dense, rows, and what is not pushed to. End before the ps.
  uint64_t resident_before_ = 0;              // The ps's before the first checkpoint.
};

absl::Status FullPs::Fill() {
  const Content content = ContentOf(options_);
  LODESTONE_ASSIGN_OR_RETURN(folder_, TemporaryFolder::Create(options_.folder));
  std::fprintf(stderr, "bench: checkpoint: filling the tables\n");
  LODESTONE_ASSIGN_OR_RETURN(
      ps_, LocalPs::Start(WithSets(options_, {absl::StrCat("server.data_dir=", folder_->File("data"))}), 0));
  const DenseWork dense{kDenseBytes, kDenseTables, 8, "dense"};
  const DenseWork rest{kRestBytes, content.rest_tables, 1, "rest"};
  for (const Peer::MakeLoad& load :
       {DenseLoad(ps_->config(), dense), RowsLoad(ps_->config(), {content.rows, kDim, kKeys, 4}),
        DenseLoad(ps_->config(), rest)}) {
    LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<Peer> peer, Peer::Start(absl::StrCat("client ", loads_.size()), load));
    loads_.push_back(std::move(peer));
  }
  for (const size_t i : {0, 1}) {
    LODESTONE_RETURN_IF_ERROR(MeasureWindow(Load(i), {OrderOf(8)}, ps_->pid(), options_.window_ms).status());
  }
  LODESTONE_RETURN_IF_ERROR(Chill(folder_->File("data/ps-0/log")).status());
  resident_before_ = ResidentBytes(ps_->pid());
  return absl::OkStatus();
}

absl::StatusOr<Sample> FullPs::MeasureDuringCheckpoint(const Pushes& pushes, v1::StatusResponse* after) const {
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<Errand> errand, BeginCheckpoint());
  Sample sum;
  do {
    LODESTONE_ASSIGN_OR_RETURN(
        const Sample window, MeasureWindow(Load(pushes.load), {OrderOf(pushes.depth)}, ps_->pid(), options_.window_ms));
    if (sum.seconds == 0 || !errand->ended()) Append(window, &sum);
  } while (!errand->ended());
  LODESTONE_ASSIGN_OR_RETURN(*after, End(errand.get()));
  return sum;
}

double FullPs::ChangedBytes(const Pushes& pushes, uint64_t pushed_bytes) const {
  const auto pushed = static_cast<double>(pushed_bytes);
  if (pushes.load == 0) return std::min(pushed, static_cast<double>(kDenseBytes * kDenseTables));
  const double pages = static_cast<double>(ContentOf(options_).rows) / kRowsPerPage;
  const double changed = pages * (1 - std::exp(-pushed / kKeyBytes / pages));  // Keys are random.
  return changed * kRowsPerPage * kRowBytes;
}

absl::Status FullPs::AddPushRows(const Pushes& pushes, const AddRow& add) {
  const std::string name = DuringName(pushes);
  if (!IsWanted(options_, name)) return absl::OkStatus();
  std::vector<double> extra, ratio;
  const Measurement measurements[] = {
      [&] { return MeasureWindow(Load(pushes.load), {OrderOf(pushes.depth)}, ps_->pid(), options_.window_ms); },
      [&]() -> absl::StatusOr<Sample> {
        LODESTONE_RETURN_IF_ERROR(Chill(folder_->File("data/ps-0/log")).status());
        v1::StatusResponse after;
        LODESTONE_ASSIGN_OR_RETURN(Sample sample, MeasureDuringCheckpoint(pushes, &after));
        extra.push_back(static_cast<double>(after.server().resident_bytes()) - static_cast<double>(resident_before_));
        ratio.push_back(extra.back() / ChangedBytes(pushes, after.server().push_bytes()));
        extra.back() *= 1e-6;
        return sample;
      }};
  LODESTONE_ASSIGN_OR_RETURN(auto samples, TakeTurns(options_, name, measurements));
  Row row = MakeRow(kBench, name, pushes.scale, std::move(samples[1]), std::move(samples[0]));
  row.values[kMemory] = std::move(extra);
  row.values[kMemoryRatio] = std::move(ratio);
  add(std::move(row));
  return absl::OkStatus();
}

// A checkpoint's bytes are its operations.
const Scale& FileScale() {
  static const auto& scale = *new Scale{"GB/s", "s/GB", 1e-9, 1, /*count_messages=*/false};
  return scale;
}

absl::Status FullPs::AddWriteRow(const AddRow& add) {
  if (!IsWanted(options_, kWrite)) return absl::OkStatus();
  LODESTONE_ASSIGN_OR_RETURN(const v1::StatusResponse first, Checkpoint());
  const uint64_t bytes = first.storage().checkpoint_bytes();
  const Measurement ours = [&]() -> absl::StatusOr<Sample> {
    LODESTONE_RETURN_IF_ERROR(Chill(folder_->File("data")).status());
    const double cpu = CpuSeconds(ps_->pid());
    LODESTONE_ASSIGN_OR_RETURN(const v1::StatusResponse after, Checkpoint());
    Sample sample;
    sample.seconds = after.storage().checkpoint_seconds();
    sample.operations = static_cast<double>(after.storage().checkpoint_bytes());
    sample.server_cpu_seconds = CpuSeconds(ps_->pid()) - cpu;
    return sample;
  };
  const Measurement limit = [&]() -> absl::StatusOr<Sample> {
    LODESTONE_RETURN_IF_ERROR(Chill(folder_->File("data")).status());
    return WriteFile(folder_->File("plain"), bytes);
  };
  LODESTONE_ASSIGN_OR_RETURN(
      Row row, MeasureInTurns(options_, kBench, absl::StrCat(kWrite, bytes >> 20, "MiB"), FileScale(), ours, limit));
  add(std::move(row));
  return absl::OkStatus();
}

absl::Status FullPs::AddLoadRow(const AddRow& add) {
  if (!IsWanted(options_, kLoad)) return absl::OkStatus();
  LODESTONE_ASSIGN_OR_RETURN(const v1::StatusResponse written, Checkpoint());
  const std::string path = written.storage().checkpoint();
  const uint64_t bytes = written.storage().checkpoint_bytes();
  // It loads and then keeps nothing, as if on another machine.
  const Options loading = WithSets(options_, {absl::StrCat("checkpoint.dir=", folder_->File("data/checkpoints")),
                                              std::string("cluster.durability=memory")});
  const Measurement ours = [&]() -> absl::StatusOr<Sample> {
    LODESTONE_RETURN_IF_ERROR(Chill(path).status());
    LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<LocalPs> ps, LocalPs::Start(loading, 0));
    LODESTONE_ASSIGN_OR_RETURN(const v1::StatusResponse back, Ask(*ps));
    Sample sample;
    sample.seconds = back.storage().recovery_seconds();
    sample.operations = static_cast<double>(bytes);
    sample.server_cpu_seconds = CpuSeconds(ps->pid());
    return sample;
  };
  const Measurement limit = [&]() -> absl::StatusOr<Sample> {
    LODESTONE_RETURN_IF_ERROR(Chill(path).status());
    return ReadFiles(path);
  };
  LODESTONE_ASSIGN_OR_RETURN(
      Row row, MeasureInTurns(options_, kBench, absl::StrCat(kLoad, bytes >> 20, "MiB"), FileScale(), ours, limit));
  add(std::move(row));
  return absl::OkStatus();
}

// Pushes for a while, then kills the ps and starts it again: how fast were they applied the first time, how fast from
// the log? The log is in the page cache, as it is after a crash of the process.
class Replay {
 public:
  Replay(const Options& options, const Pushes& pushes) : options_(options), pushes_(pushes) {}

  absl::Status AddRows(const AddRow& add) {
    const std::string name = absl::StrCat(kBench, "/replay/push/", pushes_.name, "/depth", pushes_.depth);
    if (!IsWanted(options_, name)) return absl::OkStatus();
    const Measurement measurements[] = {[this] { return Push(); }, [this] { return Recover(); }};
    LODESTONE_ASSIGN_OR_RETURN(auto samples, TakeTurns(options_, name, measurements));
    add(MakeRow(kBench, name, pushes_.scale, std::move(samples[1]), std::move(samples[0])));
    return absl::OkStatus();
  }

 private:
  static constexpr uint64_t kRows = 100'000;
  static constexpr int kWindows = 4;  // As long as so many.

  absl::StatusOr<std::unique_ptr<LocalPs>> StartPs() const {
    return LocalPs::Start(WithSets(options_, {absl::StrCat("server.data_dir=", folder_->File("data"))}), 0);
  }

  absl::StatusOr<Sample> Push() {
    LODESTONE_ASSIGN_OR_RETURN(folder_, TemporaryFolder::Create(options_.folder));
    LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<LocalPs> ps, StartPs());
    LODESTONE_ASSIGN_OR_RETURN(
        std::unique_ptr<Peer> peer,
        Peer::Start("the client", pushes_.load == 0 ? DenseLoad(ps->config(), {kDenseBytes, kDenseTables, 8})
                                                    : RowsLoad(ps->config(), {kRows, kDim, kKeys, 8})));
    const std::unique_ptr<Peer> peers[] = {std::move(peer)};
    LODESTONE_ASSIGN_OR_RETURN(const v1::StatusResponse before, Ask(*ps));
    LODESTONE_ASSIGN_OR_RETURN(
        Sample sample, MeasureWindow(peers, {OrderOf(pushes_.depth)}, ps->pid(), kWindows * options_.window_ms));
    LODESTONE_ASSIGN_OR_RETURN(const v1::StatusResponse after, Ask(*ps));
    logged_ = static_cast<double>(after.server().pushes() - before.server().pushes());
    if (pushes_.load == 1) logged_ += static_cast<double>(kRows) / kKeys;  // That made the rows.
    return sample;
  }

  absl::StatusOr<Sample> Recover() {
    LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<LocalPs> ps, StartPs());
    LODESTONE_ASSIGN_OR_RETURN(const v1::StatusResponse back, Ask(*ps));
    Sample sample;
    sample.seconds = back.storage().recovery_seconds();
    sample.operations = logged_;
    sample.server_cpu_seconds = CpuSeconds(ps->pid());
    return sample;
  }

  const Options options_;
  const Pushes pushes_;
  std::unique_ptr<TemporaryFolder> folder_;
  double logged_ = 0;  // Pushes that are in the log.
};

}  // namespace

absl::Status RunCheckpoint(const Options& options, const AddRow& add) {
  const auto dense = [](uint32_t depth) { return Pushes{SizeText(kDenseBytes), depth, BytesScale(kDenseBytes), 0}; };
  const auto rows = [](uint32_t depth) {
    return Pushes{absl::StrCat(kKeys, "rows"), depth, KeysScale(kKeys, kKeys * kKeyBytes), 1};
  };
  bool needs_full = IsWanted(options, kWrite) || IsWanted(options, kLoad);
  for (const Pushes& pushes : {dense(1), dense(8), rows(1)}) needs_full |= IsWanted(options, DuringName(pushes));
  if (needs_full) {
    LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<FullPs> full, FullPs::Start(options));
    for (const Pushes& pushes : {dense(1), dense(8), rows(1)}) {
      LODESTONE_RETURN_IF_ERROR(full->AddPushRows(pushes, add));
    }
    LODESTONE_RETURN_IF_ERROR(full->AddWriteRow(add));
    LODESTONE_RETURN_IF_ERROR(full->AddLoadRow(add));
  }
  for (const Pushes& pushes : {dense(8), rows(8)}) LODESTONE_RETURN_IF_ERROR(Replay(options, pushes).AddRows(add));
  return absl::OkStatus();
}

}  // namespace lodestone::bench
