#include "worker/report/results.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/version.h"
#include "common/config/config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/worker/report/event_file.h"

namespace lodestone::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

using Json = nlohmann::json;

constexpr char kDevice[] = "cuda:0 (NVIDIA H200)";

class ResultsTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* const test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = absl::StrCat(std::getenv("TEST_TMPDIR"), "/", test->name(), "/results");
    config_.mutable_cluster()->set_name("clicks");
    config_.mutable_cluster()->set_seed(7);
    config_.mutable_worker()->set_results_dir(folder_);
    config_.mutable_worker()->set_results_every_ms(1000);
  }

  std::unique_ptr<Results> Open(const FileCalls* calls = nullptr) {
    auto results = calls == nullptr ? Results::Open(config_, 3, kDevice, &time_)
                                    : Results::Open(config_, 3, kDevice, &time_, calls);
    EXPECT_TRUE(results.ok()) << results.status();
    return results.ok() ? *std::move(results) : nullptr;
  }
  // The step `clock`, of 100 samples, each with this loss; it took 250 ms.
  void Step(Results* results, uint64_t clock, double loss, const NamedMetric& metric = {"auc", 0.625}) {
    time_.AdvanceMs(250);
    const double done = static_cast<double>(clock);
    results->Step({clock,
                   100 * clock,
                   100,
                   100 * loss,
                   100,
                   clock,
                   1.5 * done,
                   2.5 * done,
                   {0.01 * done, 0, 0.2 * done, 0.03 * done}},
                  metric);
  }

  std::string path() const { return folder_ + "/worker-3.jsonl"; }
  // The lines, each of which must be a JSON object with a time.
  std::vector<Json> Lines() const {
    const std::string text = ReadWhole(path());
    EXPECT_EQ(text.back(), '\n');
    std::vector<Json> lines;
    for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      lines.push_back(Json::parse(std::string(line), nullptr, /*allow_exceptions=*/false));
      EXPECT_TRUE(lines.back().is_object()) << line;
      EXPECT_EQ(lines.back()["time"].get<std::string>().size(), sizeof("2026-11-21T04:00:00.123Z") - 1) << line;
    }
    return lines;
  }
  std::vector<std::string> LineEvents() const {
    std::vector<std::string> events;
    for (const Json& line : Lines()) events.push_back(line["event"]);
    return events;
  }
  // The records of all event files, in the order of the files' names.
  std::vector<tensorboard::Event> Records() const {
    std::vector<tensorboard::Event> records;
    const auto names = ListFolder(folder_ + "/worker-3");
    EXPECT_TRUE(names.ok()) << names.status();
    for (const std::string& name : *names) {
      const auto of_file = ParseEvents(ReadWhole(absl::StrCat(folder_, "/worker-3/", name)));
      records.insert(records.end(), of_file.begin(), of_file.end());
    }
    return records;
  }
  static std::vector<std::pair<std::string, float>> ValuesOf(const tensorboard::Event& event) {
    std::vector<std::pair<std::string, float>> values;
    for (const auto& value : event.summary().value()) values.emplace_back(value.tag(), value.simple_value());
    return values;
  }

  std::string folder_;
  v1::Config config_;
  ManualTime time_;
};

TEST_F(ResultsTest, TheFirstLineIsTheRun) {
  const absl::Time before = absl::Now();
  Open();
  const std::vector<Json> lines = Lines();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["event"], "run");
  EXPECT_EQ(lines[0]["cluster"], "clicks");
  EXPECT_EQ(lines[0]["worker"], 3);
  EXPECT_EQ(lines[0]["pid"], getpid());
  EXPECT_EQ(lines[0]["version"], kVersion);
  EXPECT_TRUE(lines[0].contains("commit"));
  EXPECT_EQ(lines[0]["seed"], 7);
  EXPECT_EQ(lines[0]["device"], "cuda:0 (NVIDIA H200)");
  EXPECT_EQ(lines[0]["config"], PrintConfig(config_));
  absl::Time time;
  ASSERT_TRUE(absl::ParseTime(absl::RFC3339_full, lines[0]["time"].get<std::string>(), &time, nullptr));
  EXPECT_GE(time, before - absl::Milliseconds(1));  // It is cut to milliseconds.
  EXPECT_LE(time, absl::Now());
}

TEST_F(ResultsTest, ALineIsThereEachTimeThatTheIntervalHasPassed) {
  const auto results = Open();
  results->StartTraining(1000);
  for (uint64_t clock = 1; clock <= 9; ++clock) {
    Step(results.get(), clock, clock <= 4 ? 0.75 : 0.5);
    EXPECT_EQ(Lines().size(), 1 + clock / 4) << clock;
    EXPECT_EQ(Records().size(), 1 + clock / 4) << clock;
  }
  const std::vector<Json> lines = Lines();
  EXPECT_EQ(lines[1]["event"], "training");
  EXPECT_EQ(lines[1]["seconds"], 1);
  EXPECT_EQ(lines[1]["clock"], 4);
  EXPECT_EQ(lines[1]["samples"], 400);
  EXPECT_EQ(lines[1]["samples_total"], 1000);
  EXPECT_EQ(lines[1]["samples_per_second"], 400);
  EXPECT_EQ(lines[1]["loss"], 0.75);
  EXPECT_EQ(lines[1]["metric"].dump(), R"({"auc":0.625})");
  EXPECT_EQ(lines[1]["staleness_pushes"], 1.5);
  EXPECT_EQ(lines[1]["delay"], 2.5);
  EXPECT_EQ(lines[2]["seconds"], 2);
  EXPECT_EQ(lines[2]["samples"], 800);
  EXPECT_EQ(lines[2]["samples_per_second"], 400) << "of the steps since the line before";
  EXPECT_EQ(lines[2]["loss"], 0.5) << "of the steps since the line before";
  EXPECT_EQ(lines[2]["stage_seconds"].dump(), R"({"compute":0.8,"input":0.04,"pull":0.0,"push":0.12})");
}

TEST_F(ResultsTest, TensorBoardGetsTheSameByClock) {
  const double before = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  const auto results = Open();
  results->StartTraining(1000);
  for (uint64_t clock = 1; clock <= 4; ++clock) Step(results.get(), clock, 0.75);
  const std::vector<tensorboard::Event> records = Records();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].file_version(), "brain.Event:2");
  EXPECT_EQ(records[1].step(), 4);
  EXPECT_GE(records[1].wall_time(), before - 1e-3);
  EXPECT_LE(records[1].wall_time(), absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()) + 1e-3);
  EXPECT_THAT(
      ValuesOf(records[1]),
      ElementsAre(Pair("loss", 0.75f), Pair("auc", 0.625f), Pair("samples_per_second", 400.0f),
                  Pair("staleness_pushes", 1.5f), Pair("delay", 2.5f), Pair("time_share/input", 0.04f),
                  Pair("time_share/pull", 0.0f), Pair("time_share/compute", 0.8f), Pair("time_share/push", 0.12f)));
}

TEST_F(ResultsTest, TheLastLineHasTheMetricsAndTheOneBeforeTheRestOfTheSteps) {
  const auto results = Open();
  results->StartTraining(500);
  for (uint64_t clock = 1; clock <= 5; ++clock) Step(results.get(), clock, 0.25);
  EXPECT_THAT(LineEvents(), ElementsAre("run", "training", "training")) << "at once after the last step";
  time_.AdvanceMs(10'000);  // It waits for the others and evaluates.
  Summary summary;
  summary.samples = 500;
  summary.seconds = 1.25;
  summary.staleness_pushes = 1.5;
  summary.delays = {{"embedding", 5, 2.5, 1, 2, 3, 4}};
  summary.samples_total = 600;
  summary.loss_complaint = "the training loss has not fallen";
  summary.stage_seconds = {0.05, 0, 1, 0.15};
  summary.train = EvaluationMetrics::Result{500, 0.25, 0.9, 0.95, std::nullopt};
  summary.test = EvaluationMetrics::Result{100, 0.5, 0.8, 0.85, std::nullopt};
  summary.best_reachable = 0.875;
  summary.best_reachable_metric = "auc";
  results->Finish(summary);

  ASSERT_THAT(LineEvents(), ElementsAre("run", "training", "training", "result"));
  const std::vector<Json> lines = Lines();
  EXPECT_EQ(lines[2]["clock"], 5);
  EXPECT_EQ(lines[2]["samples_per_second"], 400);
  EXPECT_EQ(lines[3]["seconds"], 1.25);
  EXPECT_EQ(lines[3]["clock"], 5);
  EXPECT_EQ(lines[3]["samples"], 500);
  EXPECT_EQ(lines[3]["samples_per_second"], 400);
  EXPECT_EQ(lines[3]["stage_seconds"]["push"], 0.15);
  EXPECT_EQ(lines[3]["delay"]["embedding"].dump(), R"({"max":4,"mean":2.5,"own":1.0,"p50":2,"p90":3})");
  EXPECT_EQ(lines[3]["complete"], false);
  EXPECT_EQ(lines[3]["missing"], "worker 0 trained 500 of 600 samples");
  EXPECT_EQ(lines[3]["warning"], "the training loss has not fallen");
  EXPECT_EQ(lines[3]["train"].dump(), R"({"accuracy":0.9,"auc":0.95,"loss":0.25,"samples":500})");
  EXPECT_EQ(lines[3]["test"].dump(), R"({"accuracy":0.8,"auc":0.85,"loss":0.5,"samples":100})");
  EXPECT_EQ(lines[3]["best_reachable"]["auc"], 0.875);
  const tensorboard::Event last = Records().back();
  EXPECT_EQ(last.step(), 5);
  EXPECT_THAT(ValuesOf(last),
              ElementsAre(Pair("train/loss", 0.25f), Pair("train/accuracy", 0.9f), Pair("train/auc", 0.95f),
                          Pair("test/loss", 0.5f), Pair("test/accuracy", 0.8f), Pair("test/auc", 0.85f)));
}

TEST_F(ResultsTest, AWorkerThatDoesNotEvaluateHasALastLineWithoutMetrics) {
  const auto results = Open();
  results->Finish(Summary());
  ASSERT_THAT(LineEvents(), ElementsAre("run", "result"));
  EXPECT_FALSE(Lines()[1].contains("test"));
  EXPECT_TRUE(Lines()[1]["samples_per_second"].is_null());
  EXPECT_EQ(Records().size(), 1u);
}

TEST_F(ResultsTest, ARunThatFailsSaysWhy) {
  const auto results = Open();
  results->StartTraining(1000);
  Step(results.get(), 1, 0.5);
  time_.AdvanceMs(10'000);  // It waits in vain.
  results->Fail(absl::UnavailableError("ps 1 is \"gone\"\n\xff"));
  ASSERT_THAT(LineEvents(), ElementsAre("run", "training", "failed"));
  EXPECT_EQ(Lines()[1]["seconds"], 0.25);
  EXPECT_EQ(Lines()[1]["samples_per_second"], 400);
  EXPECT_THAT(Lines()[2]["reason"].get<std::string>(), HasSubstr("UNAVAILABLE: ps 1 is \"gone\"\n"));
}

TEST_F(ResultsTest, WhatIsNotKnownIsNull) {
  const auto results = Open();
  results->StartTraining(1000);
  results->Step({1, 100, 100, std::nan(""), 100, 0, 0, 0, {}}, NamedMetric());
  results->Finish(Summary());
  const Json line = Lines()[1];
  EXPECT_TRUE(line["samples_per_second"].is_null()) << "no time has passed";
  EXPECT_TRUE(line["staleness_pushes"].is_null()) << "no push is acknowledged";
  EXPECT_TRUE(line["loss"].is_null());
  EXPECT_TRUE(line.contains("metric") && line["metric"].is_null()) << "there was none yet";
  EXPECT_EQ(Records().back().summary().value_size(), 1);
}

TEST_F(ResultsTest, TheLossIsTheMeanOverTheWeights) {
  const auto results = Open();
  results->StartTraining(1000);
  results->Step({1, 100, 100, 25, 50, 0, 0, 0, {}}, NamedMetric());
  results->Finish(Summary());
  EXPECT_EQ(Lines()[1]["loss"], 0.5);
}

TEST_F(ResultsTest, TheMetricIsTheNewestOneAndANumberOrNull) {
  const auto results = Open();
  results->StartTraining(1200);
  for (uint64_t clock = 1; clock <= 3; ++clock) Step(results.get(), clock, 0.5, NamedMetric());
  Step(results.get(), 4, 0.5, {"rmse", 1.0 / 3});
  for (uint64_t clock = 5; clock <= 8; ++clock) Step(results.get(), clock, 0.5, {"rmse", std::nan("")});
  for (uint64_t clock = 9; clock <= 12; ++clock) Step(results.get(), clock, 0.5, {"rmse", HUGE_VAL});
  const std::vector<Json> lines = Lines();
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[1]["metric"].dump(), R"({"rmse":0.3333333})");
  EXPECT_EQ(lines[2]["metric"].dump(), R"({"rmse":null})");
  EXPECT_EQ(lines[3]["metric"].dump(), R"({"rmse":null})");
  const std::vector<tensorboard::Event> records = Records();
  ASSERT_EQ(records.size(), 4u);
  EXPECT_THAT(ValuesOf(records[1]), testing::Contains(Pair("rmse", 1.0f / 3)));
  for (int i : {2, 3}) EXPECT_THAT(ValuesOf(records[i]), testing::Not(testing::Contains(Pair("rmse", testing::_))));
}

TEST_F(ResultsTest, ARestartAppendsAnotherRun) {
  for (int run = 0; run < 2; ++run) {
    const auto results = Open();
    results->StartTraining(1000);
    for (uint64_t clock = 1; clock <= 4; ++clock) Step(results.get(), clock, 0.5);
  }
  EXPECT_THAT(LineEvents(), ElementsAre("run", "training", "run", "training"));
  std::vector<std::string> records;
  for (const tensorboard::Event& record : Records()) records.push_back(record.file_version());
  EXPECT_THAT(records, ElementsAre("brain.Event:2", "", "brain.Event:2", ""));
}

TEST_F(ResultsTest, ALineThatWasNotWrittenToItsEndIsCutAtTheNextStart) {
  Open();
  const std::string whole = ReadWhole(path());
  std::ofstream(path(), std::ios::app) << R"({"event":"training","config":")" << std::string(10000, 'x');
  Open();
  EXPECT_EQ(ReadWhole(path()).substr(0, whole.size()), whole);
  EXPECT_THAT(LineEvents(), ElementsAre("run", "run"));
  std::ofstream(path(), std::ios::trunc) << "half a line";
  Open();
  EXPECT_THAT(LineEvents(), ElementsAre("run"));
}

TEST_F(ResultsTest, AFolderThatCannotBeIsAnErrorThatNamesIt) {
  const std::string file = folder_.substr(0, folder_.rfind('/'));  // The folder's parent.
  std::ofstream(file) << "x";
  const auto results = Results::Open(config_, 3, kDevice, &time_);
  EXPECT_THAT(results.status().ToString(), HasSubstr("worker.results_dir cannot be used"));
  EXPECT_THAT(results.status().ToString(), HasSubstr(file));
}

// System calls that write, on a disk with room for so many bytes.
class SmallDisk {
 public:
  SmallDisk() : system_(FileCalls::System()), calls_(system_) {
    calls_.writev = [this](int fd, const iovec* pieces, int count) -> ssize_t {
      EXPECT_EQ(count, 1);
      if (room == 0) {
        errno = ENOSPC;
        return -1;
      }
      iovec piece = {pieces[0].iov_base, std::min(pieces[0].iov_len, room)};
      const ssize_t written = system_.writev(fd, &piece, 1);
      if (written > 0) room -= static_cast<size_t>(written);
      return written;
    };
    calls_.ftruncate = [this](int fd, off_t bytes) {
      if (truncates) return system_.ftruncate(fd, bytes);
      errno = EIO;
      return -1;
    };
  }
  const FileCalls* calls() const { return &calls_; }

  size_t room = 1 << 20;
  bool truncates = true;

 private:
  const FileCalls system_;
  FileCalls calls_;
};

TEST_F(ResultsTest, AFullDiskAtTheStartIsAnErrorThatNamesTheFile) {
  SmallDisk disk;
  disk.room = 20;
  const auto results = Results::Open(config_, 3, kDevice, &time_, disk.calls());
  EXPECT_THAT(results.status().ToString(), HasSubstr(path()));
  EXPECT_THAT(results.status().ToString(), HasSubstr("No space left on device"));
}

TEST_F(ResultsTest, AFullDiskLaterCostsLinesOnlyAndIsSaidOnce) {
  SmallDisk disk;
  const auto results = Open(disk.calls());
  results->StartTraining(10000);
  testing::internal::CaptureStderr();
  uint64_t clock = 0;
  const auto interval = [&] {
    for (int i = 0; i < 4; ++i) Step(results.get(), ++clock, 0.5);
  };
  disk.room = 30;  // A part of the next line.
  for (int i = 0; i < 3; ++i) interval();
  EXPECT_EQ(Lines().size(), 1u);
  disk.room = 1 << 20;
  interval();
  const std::string text = ReadWhole(path());
  disk.room = text.size() - 1 - text.rfind('\n', text.size() - 2) + 20;  // The next line, and a part of its record.
  interval();
  disk.room = 1 << 20;
  interval();
  const std::string log = testing::internal::GetCapturedStderr();
  const std::vector<std::string> parts = absl::StrSplit(log, "results are left out, training goes on");
  EXPECT_EQ(parts.size(), 2u) << log;
  EXPECT_THAT(log, HasSubstr("No space left on device"));

  std::vector<int> clocks;
  for (const Json& line : Lines()) {
    if (line["event"] == "training") clocks.push_back(line["clock"]);
  }
  EXPECT_THAT(clocks, ElementsAre(16, 20, 24));
  clocks.clear();
  for (const tensorboard::Event& record : Records()) clocks.push_back(static_cast<int>(record.step()));
  EXPECT_THAT(clocks, ElementsAre(0, 16, 24));
}

TEST_F(ResultsTest, APartOfALineThatCannotBeCutAtOnceIsCutBeforeTheNext) {
  SmallDisk disk;
  const auto results = Open(disk.calls());
  results->StartTraining(10000);
  disk.room = 30;
  disk.truncates = false;
  for (uint64_t clock = 1; clock <= 4; ++clock) Step(results.get(), clock, 0.5);
  EXPECT_NE(ReadWhole(path()).back(), '\n');
  disk.room = 1 << 20;
  for (uint64_t clock = 5; clock <= 8; ++clock) Step(results.get(), clock, 0.5);
  EXPECT_NE(ReadWhole(path()).back(), '\n') << "nothing follows a part of a line";
  disk.truncates = true;
  for (uint64_t clock = 9; clock <= 12; ++clock) Step(results.get(), clock, 0.5);
  EXPECT_THAT(LineEvents(), ElementsAre("run", "training"));
}

}  // namespace
}  // namespace lodestone::worker
