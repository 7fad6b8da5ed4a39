// Predictions of one model by every way there is: from its file, from a running cluster, by psctl predict, by psctl
// serve over gRPC and over HTTP. They are the same numbers.
#include <signal.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/random.h"
#include "common/rpc/channel.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/serving.grpc.pb.h"
#include "tests/cluster/numpy_model.h"
#include "tests/cluster/psctl_run.h"
#include "tests/common/http/http_client.h"
#include "tools/psctl/local/child_process.h"

namespace lodestone {
namespace {

using testing::HasSubstr;

constexpr uint64_t kSeed = 23;
constexpr double kSame = 1e-6;  // Of probabilities: batches of another size are summed up in another order.
constexpr int kMessageBytesMax = 32 << 20;

constexpr char kConfig[] = R"(
cluster: {servers: 1, workers: 2, shards: 8}
model: {type: deepfm, embedding_dim: 4, hidden: [16, 8]}
data:
  format: csv
  csv: {header: YES, label: click, numeric: [age, income], categorical: [city, device], transform: {age: STANDARDIZE, income: LOG_STANDARDIZE}}
train: {epochs: 2, batch_size: 64}
)";

// A CSV file of clicks with the columns of kConfig.
void WriteClicks(const std::string& path, size_t lines, uint64_t stream) {
  const uint64_t seed = StreamSeed(kSeed, stream);
  std::ofstream file(path);
  file << "age,income,city,device,click\n";
  for (size_t i = 0; i < lines; ++i) {
    const double age = 40 + 10 * RandomNormal(seed, 3 * i), income = 30'000 + 9000 * RandomNormal(seed, 3 * i + 1);
    const uint64_t city = RandomBits(seed, 1'000'000 + 2 * i) % 30, device = RandomBits(seed, 1'000'001 + 2 * i) % 5;
    const double score = 0.08 * (age - 40) + 1e-4 * (income - 30'000) + (city % 3 == 0 ? 1.5 : -0.5) - 1;
    const bool click = RandomUniform(seed, 2'000'000 + i) < 1 / (1 + std::exp(-score));
    file << (i % 17 == 0 ? "" : absl::StrCat(age)) << "," << income << ",c" << city << ",d" << device << ","
         << (click ? "yes" : "no") << "\n";
  }
}

std::vector<double> Scores(const std::string& path) {
  std::vector<double> scores;
  for (const std::string& line : Lines(path)) {
    const std::vector<std::string> fields = absl::StrSplit(line, ',');
    if (!scores.empty() || fields.back() != "score") scores.push_back(std::stod(fields.back()));
  }
  return scores;
}

void ExpectSame(const std::vector<double>& scores, const std::vector<double>& expected) {
  ASSERT_EQ(scores.size(), expected.size());
  double worst = 0;
  for (size_t i = 0; i < scores.size(); ++i) worst = std::max(worst, std::abs(scores[i] - expected[i]));
  EXPECT_LE(worst, kSame);
}

// Runs psctl and returns what it says; the test fails if psctl does.
std::string RunPsctl(const std::vector<std::string>& arguments) {
  PsctlRun run(arguments);
  EXPECT_EQ(run.WaitForEnd(), "ended") << absl::StrJoin(arguments, " ") << "\n" << run.output();
  return run.output();
}

std::vector<double> PredictedBy(const std::string& model, const std::string& data) {
  const std::string out = TestFile("scores.csv");
  RunPsctl({"predict", model, "--data", data, "--out", out});
  return Scores(out);
}

// `psctl serve` of a model.
class Serve {
 public:
  explicit Serve(const std::string& model)
      : run_({"serve", model, "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"}) {
    EXPECT_TRUE(run_.WaitForOutput("/predict\n")) << run_.output();
    // "serves X at 127.0.0.1:1 (gRPC) and http://127.0.0.1:2/predict"
    const size_t at = run_.output().rfind(" at ");
    address_ = run_.output().substr(at + 4, run_.output().find(" (gRPC)") - at - 4);
    http_ = PortIn(std::string(absl::StripSuffix(run_.output(), "/predict\n")));
  }

  std::vector<double> ByGrpc(const std::vector<std::string>& lines) {
    v1::PredictRequest request;
    request.mutable_lines()->set_header(lines[0]);
    for (size_t i = 1; i < lines.size(); ++i) request.mutable_lines()->add_lines(lines[i]);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::PredictResponse response;
    const grpc::Status status =
        v1::Predictor::NewStub(MakeChannel(address_, kMessageBytesMax))->Predict(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    version_ = response.version();
    return {response.scores().begin(), response.scores().end()};
  }

  // Each sample as an object of its columns.
  std::vector<double> ByHttp(const std::vector<std::string>& lines) {
    const std::vector<std::string> names = absl::StrSplit(lines[0], ',');
    nlohmann::json request = {{"samples", nlohmann::json::array()}};
    for (size_t i = 1; i < lines.size(); ++i) {
      const std::vector<std::string> fields = absl::StrSplit(lines[i], ',');
      nlohmann::json sample;
      for (size_t c = 0; c + 1 < names.size(); ++c) {  // Not the label.
        if (!fields[c].empty()) sample[names[c]] = fields[c];
      }
      sample["income"] = std::stod(fields[1]);
      request["samples"].push_back(std::move(sample));
    }
    const std::string body = request.dump();
    const std::string answer = AskRaw(
        http_, absl::StrCat("POST /predict HTTP/1.1\r\nHost: test\r\nContent-Length: ", body.size(), "\r\n\r\n", body));
    EXPECT_EQ(CodeOf(answer), 200) << answer.substr(0, 1000);
    std::vector<double> scores;
    const nlohmann::json json = nlohmann::json::parse(BodyOf(answer), nullptr, false);
    for (const nlohmann::json& one : json["predictions"]) scores.push_back(one["score"].get<double>());
    return scores;
  }

  int Readiness() const { return CodeOf(Get(http_, "/readyz")); }
  uint64_t version() const { return version_; }  // Of the last ByGrpc.
  std::string End() {
    run_.Signal(SIGTERM);
    return run_.WaitForEnd();
  }

 private:
  PsctlRun run_;
  std::string address_;
  uint16_t http_ = 0;
  uint64_t version_ = 0;
};

// A ps that goes on with a data folder, and no worker.
class Ps {
 public:
  Ps(const std::string& config, const std::string& folder) {
    const std::string address_file = TestFile("ps.address");
    std::remove(address_file.c_str());
    auto child =
        psctl::Child::Start("ps", {ProjectFile("server/ps"), "--config", config, "--set", "server.data_dir=" + folder,
                                   "--set", "server.listen=127.0.0.1:0", "--address-file", address_file});
    EXPECT_TRUE(child.ok()) << child.status();
    child_ = *std::move(child);
    while (Lines(address_file).empty() && !child_->Reap([](absl::string_view) {})) {
    }
    EXPECT_TRUE(child_->running());
    address_ = Lines(address_file)[0];
    while (true) {  // Until it has recovered what it held.
      PsctlRun health({"health", "--address", address_});
      if (health.WaitForEnd() == "ended") break;
    }
  }
  const std::string& address() const { return address_; }

 private:
  std::unique_ptr<psctl::Child> child_;
  std::string address_;
};

nlohmann::json StatusOf(const std::string& address) {
  return nlohmann::json::parse(RunPsctl({"status", "--address", address, "--json"}), nullptr, false);
}

TEST(Serving, TheFileTheServerAndTheRunningClusterPredictTheSame) {
  const std::string config = TestFile("clicks.yaml");
  std::ofstream(config) << kConfig;
  WriteClicks(TestFile("a.csv"), 5000, 1);
  WriteClicks(TestFile("t.csv"), 3000, 2);
  const std::string model = TestFile("clicks.safetensors"), folder = TestFile("data"), test = TestFile("t.csv");
  RunPsctl({"local", config, "--set", "data.train=" + TestFile("a.csv"), "--set", "data.test=" + test, "--set",
            "server.data_dir=" + folder, "--model", model});
  const std::vector<std::string> lines = Lines(test);
  const std::vector<double> expected = PredictedBy(model, test);
  ASSERT_EQ(expected.size(), 3000u);
  {
    Serve serve(model);
    ExpectSame(serve.ByGrpc(lines), expected);
    ExpectSame(serve.ByHttp(lines), expected);
    EXPECT_EQ(serve.Readiness(), 200);
    EXPECT_EQ(serve.version(), 0u);
    EXPECT_EQ(serve.End(), "ended");
  }
  const Ps ps(config, folder);
  const nlohmann::json before = StatusOf(ps.address());
  ASSERT_TRUE(before.contains("cluster") && before.contains("sessions"));
  ExpectSame(PredictedBy(ps.address(), test), expected);
  const std::string by_file = RunPsctl({"evaluate", model, "--data", test});
  EXPECT_EQ(RunPsctl({"evaluate", ps.address(), "--data", test}), by_file);
  {
    Serve serve(ps.address());
    ExpectSame(serve.ByGrpc(lines), expected);
    ExpectSame(serve.ByHttp(lines), expected);
    EXPECT_GT(serve.version(), 0u);
    // What reads takes no worker's place and opens no session.
    const nlohmann::json after = StatusOf(ps.address());
    EXPECT_EQ(after["cluster"]["workers"].size(), before["cluster"]["workers"].size());
    EXPECT_EQ(after["sessions"].size(), before["sessions"].size());
    EXPECT_EQ(serve.End(), "ended");
  }
}

// The score of each sample by read_model.py.
std::vector<double> PredictedByNumpy(const std::string& model, const std::string& data) {
  std::vector<double> scores;
  for (const std::string& line : ByNumpy(model, data)) {
    const std::vector<std::string> fields = absl::StrSplit(line, ' ');
    scores.push_back(std::stod(fields.back()));
  }
  return scores;
}

TEST(Serving, WhatWasKeptContinuedWithOtherDataRatesAndThreeWorkersAndExportedIsPredictedTheSameByAll) {
  const std::string config = TestFile("clicks.yaml");
  std::ofstream(config) << kConfig;
  WriteClicks(TestFile("a.csv"), 5000, 3);
  WriteClicks(TestFile("b.csv"), 6000, 4);
  WriteClicks(TestFile("t.csv"), 3000, 5);
  const std::string folder = TestFile("continued"), test = TestFile("t.csv"), first = TestFile("first.safetensors"),
                    exported = TestFile("exported.safetensors"), summary = TestFile("continued.json");
  const auto train = [&](const std::string& data, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"local",     config,
                                          "--set",     "data.train=" + data,
                                          "--set",     "data.test=" + test,
                                          "--set",     "server.data_dir=" + folder,
                                          "--summary", summary};
    arguments.insert(arguments.end(), more.begin(), more.end());
    RunPsctl(arguments);
  };
  // Trained, and kept.
  train(TestFile("a.csv"), {"--model", first});
  const std::vector<double> before = PredictedBy(first, test);
  // Continued.
  train(TestFile("b.csv"), {"--set", "cluster.workers=3", "--set", "model.optimizer.learning_rate=0.02", "--set",
                            "model.optimizer.adagrad.initial_accumulator=0.01"});
  const absl::StatusOr<psctl::RunSummary> trained = psctl::ReadSummary(summary);
  ASSERT_TRUE(trained.ok()) << trained.status();
  EXPECT_EQ(trained->workers, 3u);
  // Exported, and predicted by psctl: of the export, and of the checkpoint that it was made from.
  RunPsctl({"export", folder + "/checkpoints", "--out", exported});
  const std::vector<double> expected = PredictedBy(exported, test);
  ASSERT_EQ(expected.size(), 3000u);
  ASSERT_EQ(before.size(), 3000u);
  double moved = 0;
  for (size_t i = 0; i < expected.size(); ++i) moved = std::max(moved, std::abs(expected[i] - before[i]));
  EXPECT_GT(moved, 0.01) << "the second run has changed the model";
  ExpectSame(PredictedBy(folder + "/checkpoints", test), expected);
  // By the worker that evaluated it: its loss is that of these scores.
  const std::vector<std::string> lines = Lines(test);
  double loss = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    loss -= std::log(absl::EndsWith(lines[i + 1], "yes") ? expected[i] : 1 - expected[i]);
  }
  EXPECT_NEAR(loss / expected.size(), MetricOf(trained->test, "loss"), 1e-5);
  // By a server of the export, and one of the servers that come back with what they hold.
  {
    Serve serve(exported);
    ExpectSame(serve.ByGrpc(lines), expected);
    ExpectSame(serve.ByHttp(lines), expected);
    EXPECT_EQ(serve.End(), "ended");
  }
  {
    const Ps ps(config, folder);
    Serve serve(ps.address());
    ExpectSame(serve.ByGrpc(lines), expected);
    EXPECT_EQ(serve.End(), "ended");
  }
  // By another program.
  if (!HasNumpy()) GTEST_SKIP() << "/usr/bin/python3 has no numpy";
  const std::vector<double> by_numpy = PredictedByNumpy(exported, test);
  ASSERT_EQ(by_numpy.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(by_numpy[i], expected[i], 1e-5) << "sample " << i;
}

TEST(Serving, FollowsAClusterWhileItTrains) {
  const std::string config = TestFile("clicks.yaml");
  std::ofstream(config) << kConfig;
  WriteClicks(TestFile("a.csv"), 5000, 1);
  PsctlRun training({"local", config, "--set", "data.train=" + TestFile("a.csv"), "--set", "train.epochs=1000000"});
  ASSERT_TRUE(training.WaitForOutput("psctl: training")) << training.output();
  const size_t at = training.output().find("ps 0 is at ") + 11;
  const std::string address = training.output().substr(at, training.output().find(' ', at) - at);
  Serve serve(address);
  std::vector<std::string> lines = Lines(TestFile("a.csv"));
  lines.resize(100);
  const std::vector<double> first = serve.ByGrpc(lines);
  const uint64_t version = serve.version();
  while (serve.version() == version || serve.ByGrpc(lines) == first) serve.ByGrpc(lines);
  EXPECT_GT(serve.version(), version);
  EXPECT_EQ(serve.Readiness(), 200);
  EXPECT_EQ(serve.End(), "ended");
  training.Signal(SIGTERM);
  training.WaitForEnd();
}

TEST(Serving, AClusterWithoutAModelSaysSo) {
  const std::string config = TestFile("clicks.yaml");
  std::ofstream(config) << kConfig;
  const Ps ps(config, TestFile("empty"));
  PsctlRun run({"predict", ps.address(), "--data", config, "--out", TestFile("none.csv")});
  EXPECT_NE(run.WaitForEnd(), "ended");
  EXPECT_THAT(run.output(), HasSubstr("it holds no described model yet: no worker has made its tables"));
}

}  // namespace
}  // namespace lodestone
