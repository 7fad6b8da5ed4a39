// Runs the benchmark as a user would, quickly: that every kind of load works against a real ps, not how fast it is.
#include <poll.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tools/bench/harness/row.h"
#include "tools/psctl/local/child_process.h"

namespace lodestone::bench {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::EndsWith;
using testing::Gt;
using testing::HasSubstr;
using testing::Lt;
using testing::StartsWith;

struct Result {
  std::string output;
  std::string outcome;  // "… ended" or "… failed with exit code 2: …"
};

std::string ProjectFile(const std::string& path) {
  return absl::StrCat(std::getenv("TEST_SRCDIR"), "/", std::getenv("TEST_WORKSPACE"), "/", path);
}

std::string TestFile(const std::string& name) { return absl::StrCat(std::getenv("TEST_TMPDIR"), "/", name); }

Result RunBench(const std::vector<std::string>& arguments, const std::string& program = "") {
  setenv("TMPDIR", std::getenv("TEST_TMPDIR"), /*overwrite=*/1);
  std::vector<std::string> argv = {"/usr/bin/env", "python3", ProjectFile("tools/bench/bench.py"), "--program",
                                   program.empty() ? ProjectFile("tools/bench/bench") : program};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  absl::StatusOr<std::unique_ptr<psctl::Child>> child = psctl::Child::Start("bench", argv);
  if (!child.ok()) return {"", child.status().ToString()};
  Result result;
  const auto take = [&](absl::string_view line) { absl::StrAppend(&result.output, line, "\n"); };
  while ((*child)->output_fd() >= 0) {
    pollfd wait = {(*child)->output_fd(), POLLIN, 0};
    poll(&wait, 1, -1);
    (*child)->ReadOutput(take);
  }
  while (!(*child)->Reap(take)) poll(nullptr, 0, 1);
  result.outcome = (*child)->Outcome();
  return result;
}

struct Report {
  std::set<std::string> machine;
  std::vector<Row> rows;
};

// The lines that --json has written.
Report ReadReport(const std::string& path) {
  Report report;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json object = nlohmann::json::parse(line);
    if (object.contains("machine")) {
      for (const auto& [name, words] : object["machine"].items()) report.machine.insert(name);
    } else {
      report.rows.push_back({.bench = object["bench"],
                             .name = object["name"],
                             .unit = object["unit"],
                             .cpu_unit = object.value("cpu_unit", ""),
                             .values = object["values"]});
    }
  }
  EXPECT_FALSE(report.rows.empty()) << path;
  return report;
}

double Median(const Row& row, const std::string& metric) {
  std::vector<double> values = *row.Find(metric);
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

std::vector<std::string> Quick(std::vector<std::string> names, const std::string& json) {
  const std::vector<std::string> flags = {
      "--quick", "--runs", "1", "--window-ms", "30", "--ps-binary", ProjectFile("server/ps"), "--json", json};
  names.insert(names.end(), flags.begin(), flags.end());
  return names;
}

TEST(Bench, MeasuresAllThatHasToDoWithPushesAndPullsAgainstARealPs) {
  const std::string json = TestFile("rows.json");
  const Result result = RunBench(
      Quick({"limit", "dense", "push-pull", "same-machine", "embedding", "keys", "broadcast", "durability"}, json));
  ASSERT_THAT(result.outcome, EndsWith("ended")) << result.output;
  const Report report = ReadReport(json);
  std::set<std::string> names;
  std::map<std::string, double> most;  // Of a window so short, a busy machine may have given one process nothing.
  for (const Row& row : report.rows) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_THAT(result.output, HasSubstr(row.name));
    ASSERT_NE(row.Find(kRate), nullptr) << row.name;
    EXPECT_THAT(*row.Find(kRate), Each(Gt(0))) << row.name;
    if (row.bench == "limit" || absl::StartsWith(row.name, "durability/disk/")) continue;
    for (const char* metric : {kRatio, kLimitRate}) {
      ASSERT_NE(row.Find(metric), nullptr) << row.name << " " << metric;
      EXPECT_GT(Median(row, metric), 0) << row.name << " " << metric;
    }
    for (const char* metric : {kClientCpu, kServerCpu, kCpuRatio}) {
      ASSERT_NE(row.Find(metric), nullptr) << row.name << " " << metric;
      double& most_of_bench = most[absl::StrCat(row.bench, " ", metric)];
      most_of_bench = std::max(most_of_bench, Median(row, metric));
    }
    // Rows that are pulled are copied at both ends, and nothing else is at the server but lists of keys.
    const std::vector<double>* const copies = row.Find(kServerCopies);
    if (absl::StartsWith(row.name, "embedding/pull/")) {
      ASSERT_NE(copies, nullptr) << row.name;
      EXPECT_THAT(*copies, Each(AllOf(Gt(0.5), Lt(1.5)))) << row.name;
    }
    EXPECT_TRUE(copies == nullptr || !absl::StartsWith(row.name, "dense/")) << row.name;
  }
  for (const auto& [metric, value] : most) EXPECT_GT(value, 0) << metric;
  for (const char* name :
       {"limit/memcpy/1MiB", "limit/tcp/push/4KiB/depth8", "limit/unix/push-pull/1MiB/depth8",
        "limit/fanout/4MiB/subscribers2", "dense/pull/64B/depth1/clients1", "dense/push/4KiB/depth8/clients1",
        "dense/push-pull/1MiB/depth8/clients1", "push-pull/64KiB/depth8", "same-machine/pull/1MiB/depth8",
        "same-machine/shared-memory/push/64KiB/depth1", "embedding/pull-then-push/100Krows/dim16/depth4",
        "keys/push/100Krows/dim16/depth4", "broadcast/4MiB/subscribers2", "broadcast/push/64KiB/depth8/subscribers2",
        "durability/disk/push/64KiB/depth1", "durability/memory/push/1MiB/depth8",
        "durability/process/push/64KiB/depth8", "durability/machine/push/4096rows/depth1"}) {
    EXPECT_EQ(names.count(name), 1) << name;
  }
  EXPECT_EQ(report.machine.count("CPU"), 1);
  EXPECT_EQ(report.machine.count("filesystem"), 1);

  const Result markdown = RunBench({"--markdown", json});
  EXPECT_THAT(markdown.outcome, EndsWith("ended"));
  EXPECT_THAT(markdown.output, HasSubstr("| dense/push/4KiB/depth8/clients1 | GB/s |"));
  const Result model = RunBench({"--model", json});
  EXPECT_THAT(model.outcome, EndsWith("ended"));
  EXPECT_THAT(model.output, HasSubstr("| push, server |"));
}

TEST(Bench, MeasuresCheckpointsAndTheReplayOfLogsInTheFolderThatItIsGiven) {
  const std::string json = TestFile("checkpoint.json");
  const std::string folder = TestFile("checkpoints");
  ASSERT_TRUE(std::filesystem::create_directory(folder));
  const Result result = RunBench(Quick({"checkpoint", "--folder", folder}, json));
  ASSERT_THAT(result.outcome, EndsWith("ended")) << result.output;
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  const Report report = ReadReport(json);
  std::vector<std::string> names;
  for (const Row& row : report.rows) {
    names.push_back(row.name);
    for (const char* metric : {kRate, kLimitRate, kRatio}) {
      ASSERT_NE(row.Find(metric), nullptr) << row.name << " " << metric;
      EXPECT_GT(Median(row, metric), 0) << row.name << " " << metric;
    }
    EXPECT_EQ(row.Find(kMemoryRatio) != nullptr, absl::StrContains(row.name, "/during/")) << row.name;
  }
  EXPECT_THAT(names, ElementsAre("checkpoint/during/push/64KiB/depth1", "checkpoint/during/push/64KiB/depth8",
                                 "checkpoint/during/push/4096rows/depth1", StartsWith("checkpoint/write/"),
                                 StartsWith("checkpoint/load/"), "checkpoint/replay/push/64KiB/depth8",
                                 "checkpoint/replay/push/4096rows/depth8"));
}

TEST(Bench, MeasuresStepsBesideTheirMatrixProductsAndBesideWhatAnswersAsPyTorchWould) {
  const std::string answering = TestFile("answering");
  std::ofstream(answering) << "#!/bin/sh\necho a warning\nwhile read request; do echo ok 10 0.5 0.25; done <$2\n";
  std::filesystem::permissions(answering, std::filesystem::perms::owner_all);
  const std::string json = TestFile("step.json");
  const Result result = RunBench(Quick({"step", "--root", ProjectFile(""), "--python", answering}, json));
  ASSERT_THAT(result.outcome, EndsWith("ended")) << result.output;
  const Report report = ReadReport(json);
  std::vector<std::string> names;
  for (const Row& row : report.rows) {
    names.push_back(row.name);
    for (const char* metric : {kRate, kClientCpu, kLimitRate, kRatio, kCpuRatio}) {
      ASSERT_NE(row.Find(metric), nullptr) << row.name << " " << metric;
      EXPECT_GT(Median(row, metric), 0) << row.name << " " << metric;
    }
  }
  EXPECT_THAT(
      names,
      ElementsAre("step/deepfm/256-128/batch1024/adagrad/products", "step/deepfm/256-128/batch1024/adagrad/torch",
                  "step/mlp/512-256/batch128/adagrad/products", "step/mlp/512-256/batch128/adagrad/torch"));
  EXPECT_EQ(Median(report.rows[1], kLimitRate), 20.48);  // 10 steps of 1024 samples in half a second.
}

TEST(Bench, MeasuresStepsWithoutPyTorchAndSaysSo) {
  const std::string json = TestFile("step.json");
  const Result result =
      RunBench(Quick({"step", "--only", "mlp", "--root", ProjectFile(""), "--python", TestFile("no-python")}, json));
  ASSERT_THAT(result.outcome, EndsWith("ended")) << result.output;
  EXPECT_THAT(result.output, HasSubstr("step: without PyTorch"));
  EXPECT_THAT(result.output, HasSubstr("no-python"));
  const Report report = ReadReport(json);
  ASSERT_EQ(report.rows.size(), 1);
  EXPECT_EQ(report.rows[0].name, "step/mlp/512-256/batch128/adagrad/products");
}

TEST(Bench, NamesTheStepsThatItHasNoTimeLeftFor) {
  const Result result = RunBench(Quick({"step", "--seconds-max", "0.000001", "--root", ProjectFile("")}, "-"));
  EXPECT_THAT(result.outcome, EndsWith("ended")) << result.output;
  EXPECT_THAT(result.output, HasSubstr("bench: no time left for step/deepfm/256-128/batch1024/adagrad\n"));
  EXPECT_THAT(result.output, HasSubstr("bench: no time left for step/mlp/512-256/batch128/adagrad\n"));
}

TEST(Bench, SaysWhyThereAreNoStepsOnADeviceThatIsNotThere) {
  for (const char* suite : {"step", "train"}) {
    const Result result =
        RunBench(Quick({suite, "--device", "cuda:1000", "--only", "256-128", "--root", ProjectFile(""),
                        "--psctl-binary", ProjectFile("tools/psctl/psctl"), "--python", TestFile("no-python")},
                       TestFile("none.json")));
    EXPECT_THAT(result.outcome, HasSubstr("exit code 1")) << result.output;
    EXPECT_THAT(result.output, HasSubstr("worker.device is cuda:1000, but ")) << suite;
  }
}

// Beside a local_step that answers as one with a device would.
TEST(Bench, MeasuresAWorkersPartOfStepsOnADeviceBesideWholeStepsOfPyTorch) {
  const std::string folder = TestFile("device"), bench = folder + "/bench", log = folder + "/log";
  std::filesystem::create_directory(folder);
  std::filesystem::copy_file(ProjectFile("tools/bench/bench"), bench);
  for (const char* name : {"/local_step", "/python"}) {
    std::ofstream(folder + name) << "#!/bin/sh\nfor last; do :; done\nall=\"$*\"\nwhile read request; do\n"
                                 << "echo \"${0##*/} ${all% *}: $request\" >>" << log
                                 << "\necho ok 10 0.5 0.25; done <$last\n";
    std::filesystem::permissions(folder + name, std::filesystem::perms::owner_all);
  }
  const std::string json = TestFile("device.json");
  const Result result = RunBench(
      Quick({"step", "--device", "cuda", "--root", ProjectFile(""), "--python", folder + "/python"}, json), bench);
  ASSERT_THAT(result.outcome, EndsWith("ended")) << result.output;
  const Report report = ReadReport(json);
  std::set<std::string> names;
  for (const Row& row : report.rows) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    ASSERT_NE(row.Find(kRatio), nullptr) << row.name;
  }
  const std::string deepfm = "step/cuda/deepfm/256-128/batch1024/", mlp = "step/cuda/mlp/512-256/batch128/";
  for (const std::string& network : {deepfm, mlp}) {
    for (const char* row : {"f32/products", "f32/torch", "f32/torch.compile", "f32/deterministic", "f32/update",
                            "bf16/products", "bf16/torch", "bf16/torch.compile", "tf32/products", "tf32/torch"}) {
      EXPECT_EQ(names.count(network + row), 1) << network << row;
    }
  }
  EXPECT_EQ(names.size(), 20);
  std::stringstream asked;
  asked << std::ifstream(log).rdbuf();
  for (const char* line : {"local_step --device cuda --precision bf16: deepfm/256-128 1024 adagrad gradients 0.03\n",
                           "local_step --device cuda --precision tf32: mlp/512-256 128 adagrad products 0.03\n",
                           "local_step --device cuda --precision f32 --deterministic: deepfm/256-128 1024 adagrad grad",
                           "local_step --device cuda --precision f32: deepfm/256-128 1024 adagrad step 0.03\n",
                           "--device cuda --precision bf16: deepfm/256-128 1024 adagrad step 0.03\n",
                           "--device cuda --precision bf16 --compile: mlp/512-256 128 adagrad step 0.03\n"}) {
    EXPECT_THAT(asked.str(), HasSubstr(line));
  }
}

TEST(Bench, MeasuresATrainingClusterBesideStepsWithoutAServer) {
  const std::string json = TestFile("train.json");
  const Result result = RunBench(
      Quick({"train", "--only", "1worker", "--psctl-binary", ProjectFile("tools/psctl/psctl"), "--root", ""}, json));
  ASSERT_THAT(result.outcome, EndsWith("ended")) << result.output;
  const Report report = ReadReport(json);
  ASSERT_EQ(report.rows.size(), 1);
  const Row& row = report.rows[0];
  EXPECT_EQ(row.name, "train/deepfm/256-128/batch1024/1ps/1worker");
  for (const char* metric : {kRate, kLimitRate, kRatio}) {
    ASSERT_NE(row.Find(metric), nullptr) << metric;
    EXPECT_GT(Median(row, metric), 0) << metric;
  }
}

TEST(Bench, ListsWhatItMeasuresAndExplainsItself) {
  const Result list = RunBench({"--list"});
  const Result help = RunBench({"--help"});
  EXPECT_THAT(list.outcome, EndsWith("ended"));
  EXPECT_THAT(help.outcome, EndsWith("ended"));
  for (const char* name : {"limit", "dense", "push-pull", "same-machine", "embedding", "keys", "broadcast", "optimizer",
                           "index", "durability", "checkpoint", "step", "train"}) {
    EXPECT_THAT(list.output, HasSubstr(absl::StrCat(name, " ")));
    EXPECT_THAT(help.output, HasSubstr(absl::StrCat("  ", name, " ")));
  }
  EXPECT_THAT(help.output, HasSubstr("ranges (least to largest of all"));
}

TEST(Bench, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(RunBench({"sparse"}).outcome, HasSubstr("exit code 2"));
  EXPECT_THAT(RunBench({"--compare", TestFile("none.json"), "limit"}).outcome, HasSubstr("none.json"));
  const Result no_ps = RunBench({"dense", "--quick", "--ps-binary", TestFile("no-ps")});
  EXPECT_THAT(no_ps.outcome, HasSubstr("exit code 1"));
  EXPECT_THAT(no_ps.output, HasSubstr("no-ps"));
}

}  // namespace
}  // namespace lodestone::bench
