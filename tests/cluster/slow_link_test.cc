// What a link of 10 Mb/s does to training while gradients and parameters fill it: leases, clocks and ranges stay on
// time, and workers get their shares of it.
#include <stdlib.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/time_source.h"
#include "gtest/gtest.h"
#include "tests/chaos/ps_cluster.h"
#include "tools/psctl/client/admin_client.h"
#include "tools/psctl/local/child_process.h"
#include "tools/psctl/local/run_summary.h"

namespace lodestone {
namespace {

constexpr uint64_t kSeed = 20261127;
constexpr uint64_t kLinkBytesPerSecond = 10'000'000 / 8;
constexpr uint64_t kSamples = 128, kBatch = 16, kColumns = 32, kHidden = 1024, kMoreHidden = 640;
// What one step pushes at least, and what it brings back: more than a lease of 3 s lets through while two share the
// link.
constexpr uint64_t kModelBytes = 4 * (kColumns * kHidden + kHidden * kMoreHidden);
constexpr int kStatusTimeoutMs = 10'000;

std::string ProgramOf(const std::string& name) {
  return absl::StrCat(getenv("TEST_SRCDIR"), "/", getenv("TEST_WORKSPACE"), "/", name);
}

// The order of steps that workers keep to, with the test's name for it.
struct Order {
  const char* name;
  const char* consistency;                 // In YAML.
  std::optional<uint32_t> staleness = {};  // The bound of it, if there is one.
};

class SlowLinkTest : public testing::TestWithParam<Order> {
 protected:
  void SetUp() override {
    std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
    folder_ = absl::StrCat(getenv("TEST_TMPDIR"), "/", GetParam().name);
    std::filesystem::create_directories(folder_);
    std::ofstream data(absl::StrCat(folder_, "/samples.csv"));
    for (uint64_t i = 0; i < kSamples; ++i) {
      for (uint64_t column = 0; column < kColumns; ++column)
        data << RandomBits(kSeed, i * kColumns + column) % 16 << ",";
      data << "class" << i % 4 << "\n";
    }
    chaos::PsCluster::Options options;
    options.ps_binary = ProgramOf("server/ps");
    options.folder = folder_;
    options.servers = 1;
    options.sets = {"cluster.workers=2"};
    auto cluster = chaos::PsCluster::Create(options);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    ASSERT_TRUE(cluster_->Start(0).ok());
    while (!cluster_->Serves(0)) cluster_->Pump(10);
    std::ofstream(absl::StrCat(folder_, "/worker.yaml"))
        << "cluster: {name: " << cluster_->config().cluster().name() << ", servers: 1, workers: 2, seed: 3,\n"
        << "          shared_memory: false}\n"
        << "coordinator: {address: '" << cluster_->config().coordinator().address() << "'}\n"
        << "model: {type: mlp, hidden: [" << kHidden << ", " << kMoreHidden << "]}\n"
        << "data: {format: csv, train: " << folder_ << "/samples.csv, csv: {label: -1}}\n"
        << "train: {epochs: 1, batch_size: " << kBatch << ", sharing: ranges, range_batches: 1,\n"
        << "        consistency: " << GetParam().consistency << "}\n";
  }

  std::string SummaryOf(int worker) const { return absl::StrCat(folder_, "/summary-", worker, ".json"); }
  void StartWorker() {
    auto worker = psctl::Child::Start(absl::StrCat("worker ", started_),
                                      {ProgramOf("worker/worker"), "--config", absl::StrCat(folder_, "/worker.yaml"),
                                       "--summary", SummaryOf(started_)});
    ASSERT_TRUE(worker.ok()) << worker.status();
    ++started_;
    workers_.push_back(*std::move(worker));
  }
  // Reads what the processes say; false once all workers have ended.
  bool WorkersRun() {
    cluster_->Pump(10);
    const auto note = [](absl::string_view line) { std::printf("%.*s\n", static_cast<int>(line.size()), line.data()); };
    std::erase_if(workers_, [&](const std::unique_ptr<psctl::Child>& worker) {
      worker->ReadOutput(note);
      if (!worker->Reap(note)) return false;
      EXPECT_EQ(worker->exit_code(), 0);
      return true;
    });
    return !workers_.empty();
  }
  // What workers have reported of the clocks that travelled beside the gradients.
  void ExpectWithinTheBound(const v1::StatusResponse& status) {
    if (!GetParam().staleness.has_value()) return;
    EXPECT_EQ(status.cluster().workers_size(), started_);
    for (const v1::MemberStatus& worker : status.cluster().workers()) {
      const v1::ConsistencyProgress& observed = worker.progress().consistency();
      std::printf("worker %u: %u clocks behind at most, waited %.1f s for clocks\n", worker.index(),
                  observed.behind_max(), observed.waited_seconds());
      EXPECT_TRUE(observed.has_behind_max()) << "worker " << worker.index();
      EXPECT_LE(observed.behind_max(), *GetParam().staleness) << "worker " << worker.index();
    }
  }

  std::string folder_;
  std::unique_ptr<chaos::PsCluster> cluster_;
  int started_ = 0;
  std::vector<std::unique_ptr<psctl::Child>> workers_;  // That run.
};

TEST_P(SlowLinkTest, ControlStaysOnTimeAndWorkersGetTheirShares) {
  cluster_->SetLinks({.bytes_per_second = kLinkBytesPerSecond});
  for (int i = 0; i < 2; ++i) ASSERT_NO_FATAL_FAILURE(StartWorker());
  const std::string& through_the_link = cluster_->config().coordinator().address();
  ASSERT_EQ(through_the_link, cluster_->ProxyOf(0)->address());
  const SteadyTime time;
  const int64_t began_ms = time.NowMs();
  std::vector<int64_t> answered_ms;
  double silent_seconds_max = 0;
  uint64_t answer_bytes = 0;
  v1::StatusResponse last;
  while (WorkersRun()) {
    const int64_t asked_ms = time.NowMs();
    absl::StatusOr<v1::StatusResponse> status = psctl::FetchStatus(through_the_link, kStatusTimeoutMs);
    ASSERT_TRUE(status.ok()) << status.status();
    answered_ms.push_back(time.NowMs() - asked_ms);
    answer_bytes += status->ByteSizeLong();
    for (const v1::MemberStatus& worker : status->cluster().workers()) {
      EXPECT_TRUE(worker.alive() || worker.left()) << "worker " << worker.index() << " has lost its lease";
      if (worker.alive()) silent_seconds_max = std::max(silent_seconds_max, worker.last_contact_seconds());
    }
    EXPECT_EQ(status->cluster().ranges().leased_again(), 0u) << "a lease of a range has ended";
    last = *std::move(status);
  }
  ASSERT_FALSE(answered_ms.empty());
  std::sort(answered_ms.begin(), answered_ms.end());
  const chaos::TcpProxy::Traffic traffic = cluster_->ProxyOf(0)->traffic();
  const double seconds = static_cast<double>(time.NowMs() - began_ms) / 1000;
  std::printf(
      "%zu questions answered in %lld ms at the median, %lld at most; workers silent for %.1f s at most; "
      "%.1f s, pushed at %.2f of the link's rate, "
      "sent at %.2f, of which the answers have %.2f\n",
      answered_ms.size(), static_cast<long long>(answered_ms[answered_ms.size() / 2]),
      static_cast<long long>(answered_ms.back()), silent_seconds_max, seconds,
      static_cast<double>(traffic.request_bytes) / seconds / kLinkBytesPerSecond,
      static_cast<double>(traffic.reply_bytes) / seconds / kLinkBytesPerSecond,
      static_cast<double>(answer_bytes) / seconds / kLinkBytesPerSecond);
  EXPECT_GT(traffic.request_bytes, kSamples / kBatch * kModelBytes) << "the bulk did not travel by the link";
  EXPECT_GE(traffic.connections, answered_ms.size()) << "the questions did not travel by the link";
  ExpectWithinTheBound(last);
  uint64_t samples = 0;
  for (int worker = 0; worker < started_; ++worker) {
    const absl::StatusOr<psctl::RunSummary> summary = psctl::ReadSummary(SummaryOf(worker));
    ASSERT_TRUE(summary.ok()) << summary.status();
    std::printf("worker %d trained %llu samples\n", worker, static_cast<unsigned long long>(summary->samples));
    EXPECT_GE(summary->samples, kSamples / 4) << "worker " << worker << " has had less than half of its share";
    samples += summary->samples;
  }
  EXPECT_EQ(samples, kSamples);
}

INSTANTIATE_TEST_SUITE_P(Orders, SlowLinkTest,
                         testing::Values(Order{"Async", "{async: {}}"},
                                         Order{"Bounded", "{bounded: {staleness: 2}}", 2}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace lodestone
