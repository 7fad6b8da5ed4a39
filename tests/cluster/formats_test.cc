// The same rows in another format train the same model, bit for bit, and it judges and predicts either: Criteo's log as
// NumPy arrays and as lines, columns as Parquet and as CSV.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
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

// A configuration of one worker, whose every step follows from the one before; `data`: a YAML map's content.
std::string ConfigOf(const std::string& name, const std::string& data) {
  std::ofstream(TestFile(name)) << "cluster: {servers: 2, workers: 1, seed: 5}\n"
                                << "worker: {deterministic: true}\n"
                                << "model: {type: deepfm, embedding_dim: 4, hidden: [8]}\n"
                                << "data: {test_share: 0.1, " << data << "}\n"
                                << "train: {epochs: 2, batch_size: 64, delay_max: 0}\n";
  return TestFile(name);
}

TEST(Formats, ArraysAndLinesTrainTheSameModelAndPredictTheSame) {
  const worker::NpyDay day(kRows);
  const std::string numbers = day.Write("day_0"), lines = worker::WriteFile("day_0.tsv", day.Lines());
  const std::string arrays_model = TestFile("arrays.safetensors"), lines_model = TestFile("lines.safetensors");
  constexpr char kNumeric[] = ", numeric: log_standardize";
  const std::string arrays_config =
      ConfigOf("arrays.yaml", absl::StrCat("train: '", worker::TestPath("day_*_dense.npy"), "'", kNumeric));
  EXPECT_THAT(Output({"check", arrays_config, "--data"}), HasSubstr("criteo_npy (detected)"));
  Output({"local", arrays_config, "--model", arrays_model});
  Output({"local", ConfigOf("lines.yaml", absl::StrCat("train: ", lines, kNumeric)), "--model", lines_model});
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

// Of three writers, codecs and versions of pages.
TEST(Formats, ParquetAndCsvTrainTheSameModelAndPredictTheSame) {
  const auto given = [](const std::string& name) {
    return absl::StrCat(std::getenv("TEST_SRCDIR"), "/", std::getenv("TEST_WORKSPACE"), "/tests/worker/data/parquet/",
                        name);
  };
  const auto train = [&](const std::string& file) {
    const std::string model = TestFile(absl::StrCat(file, ".safetensors"));
    Output({"local",
            ConfigOf(file + ".yaml",
                     absl::StrCat("train: ", given(file),
                                  ", csv: {label: label, numeric: [age, price], categorical: [id, city, word, ok], "
                                  "transform: {age: STANDARDIZE}}")),
            "--model", model});
    return model;
  };
  const std::string text_model = train("rows.csv"), tensors = TensorsOf(text_model);
  EXPECT_GT(tensors.size(), 5000u);
  const auto judged = [&](const std::string& model, const std::string& file) {
    return Output({"evaluate", model, "--data", given(file), "--json"});
  };
  const std::string expected = judged(text_model, "rows.csv");
  for (const char* const file : {"arrow_zstd_v2.parquet", "hyparquet_snappy.parquet", "parquetjs.parquet"}) {
    const std::string model = train(file);
    EXPECT_TRUE(TensorsOf(model) == tensors) << file << ": the same rows train another model";
    EXPECT_EQ(judged(model, file), expected) << file;
  }
}

}  // namespace
}  // namespace lodestone
