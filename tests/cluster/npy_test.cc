// Training on Criteo's log as NumPy arrays: the model is that of the log's lines, bit for bit, and judges and predicts
// either.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/psctl_run.h"
#include "tests/worker/data/npy_files.h"

namespace lodestone {
namespace {

using testing::HasSubstr;

constexpr uint64_t kRows = 6000;

std::string BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The tensors of a kept model, without the description of its data before them.
std::string TensorsOf(const std::string& path) {
  const std::string bytes = BytesOf(path);
  uint64_t header_bytes = 0;
  if (bytes.size() < sizeof(header_bytes)) return "";
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  return bytes.substr(std::min(bytes.size(), sizeof(header_bytes) + header_bytes));
}

std::string Output(std::vector<std::string> arguments) {
  PsctlRun run(std::move(arguments));
  EXPECT_EQ(run.WaitForEnd(), "ended") << run.output();
  return run.output();
}

// A configuration of one worker, whose every step follows from the one before.
std::string ConfigOf(const std::string& name, const std::string& data) {
  std::ofstream(TestFile(name)) << "cluster: {servers: 2, workers: 1, seed: 5}\n"
                                << "worker: {deterministic: true}\n"
                                << "model: {type: deepfm, embedding_dim: 4, hidden: [8]}\n"
                                << "data: {train: " << data << ", test_share: 0.1, numeric: log_standardize}\n"
                                << "train: {epochs: 1, batch_size: 64, delay_max: 0}\n";
  return TestFile(name);
}

TEST(Npy, ArraysAndLinesTrainTheSameModelAndPredictTheSame) {
  const worker::NpyDay day(kRows);
  const std::string numbers = day.Write("day_0"), lines = worker::WriteFile("day_0.tsv", day.Lines());
  const std::string arrays_model = TestFile("arrays.safetensors"), lines_model = TestFile("lines.safetensors");
  const std::string arrays_config =
      ConfigOf("arrays.yaml", absl::StrCat("'", worker::TestPath("day_*_dense.npy"), "'"));
  EXPECT_THAT(Output({"check", arrays_config, "--data"}), HasSubstr("criteo_npy (detected)"));
  Output({"local", arrays_config, "--model", arrays_model});
  Output({"local", ConfigOf("lines.yaml", lines), "--model", lines_model});
  const std::string tensors = TensorsOf(arrays_model);
  EXPECT_GT(tensors.size(), 100'000u);
  EXPECT_TRUE(tensors == TensorsOf(lines_model)) << "the same rows train another model";

  EXPECT_EQ(Output({"evaluate", arrays_model, "--data", numbers, "--json"}),
            Output({"evaluate", lines_model, "--data", lines, "--json"}));
  Output({"predict", arrays_model, "--data", worker::TestPath("day_*.npy"), "--out", TestFile("arrays.csv")});
  Output({"predict", lines_model, "--data", lines, "--out", TestFile("lines.csv")});
  EXPECT_GT(BytesOf(TestFile("arrays.csv")).size(), 10 * kRows);
  EXPECT_TRUE(BytesOf(TestFile("arrays.csv")) == BytesOf(TestFile("lines.csv")));
}

}  // namespace
}  // namespace lodestone
