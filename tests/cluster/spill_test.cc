// Training on more data than a worker may hold in memory: the model is the same, bit for bit.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/psctl_run.h"

namespace lodestone {
namespace {

constexpr uint64_t kSpillSeed = 20261123;
constexpr uint64_t kLines = 20'000;
constexpr uint64_t kSampleBytes = 4 + 3 * 4 + 4 * 8;  // Label, numbers, keys.

std::string WriteClicks(const std::string& name) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSpillSeed));
  std::ofstream file(TestFile(name));
  file << "x,y,z,a,b,c,d,click\n";
  for (uint64_t i = 0; i < kLines; ++i) {
    const double x = RandomNormal(kSpillSeed, 3 * i), y = 100 * RandomNormal(kSpillSeed, 3 * i + 1);
    file << x << "," << y << "," << (i % 9 == 0 ? "" : absl::StrCat(i % 50));
    for (uint64_t c = 0; c < 4; ++c) file << ",v" << RandomBits(kSpillSeed + c, i) % 100;
    file << "," << (RandomUniform(kSpillSeed + 9, i) < 1 / (1 + std::exp(-x - 0.01 * y)) ? "yes" : "no") << "\n";
  }
  return TestFile(name);
}

// Trains on it with these further arguments, on one worker, whose every step follows from the one before. Gives the
// model's file; *output is what was said.
std::string ModelOf(const std::string& data, const std::string& name, std::vector<std::string> sets,
                    std::string* output) {
  std::ofstream(TestFile("spill.yaml")) << "cluster: {servers: 2, workers: 1, seed: 5}\n"
                                        << "worker: {deterministic: true}\n"
                                        << "model: {type: deepfm, embedding_dim: 4, hidden: [8]}\n"
                                        << "data: {train: " << data << ", test_share: 0.1, numeric: standardize,\n"
                                        << "       csv: {label: click, numeric: [0-2], categorical: [3-6]}}\n"
                                        << "train: {epochs: 2, batch_size: 64, delay_max: 0, shuffle_window: 2048}\n";
  std::vector<std::string> arguments = {"local", TestFile("spill.yaml"), "--verbose", "--model", TestFile(name)};
  for (std::string& set : sets) arguments.insert(arguments.end(), {"--set", std::move(set)});
  PsctlRun run(arguments);
  EXPECT_EQ(run.WaitForEnd(), "ended") << run.output();
  *output = run.output();
  std::ifstream model(TestFile(name), std::ios::binary);
  return {std::istreambuf_iterator<char>(model), std::istreambuf_iterator<char>()};
}

TEST(Spill, TenTimesTheMemoryTrainsTheSameModel) {
  const std::string data = WriteClicks("clicks.csv"), folder = TestFile("spill");
  std::string in_memory, on_disk, ranges;
  const std::string expected = ModelOf(data, "memory.safetensors", {}, &in_memory);
  EXPECT_THAT(in_memory, testing::HasSubstr("spilled_bytes=0"));
  ASSERT_GT(expected.size(), 1000u);
  const std::string limit = absl::StrCat("data.memory_max_bytes=", kLines * kSampleBytes / 10);
  const std::string spilled = ModelOf(data, "disk.safetensors", {limit, "data.spill_dir=" + folder}, &on_disk);
  EXPECT_THAT(on_disk, testing::HasSubstr("spilled_bytes="));
  EXPECT_THAT(on_disk, testing::Not(testing::HasSubstr("spilled_bytes=0")));
  EXPECT_TRUE(spilled == expected) << spilled.size() << " and " << expected.size() << " bytes";
  EXPECT_TRUE(std::filesystem::is_empty(folder)) << "nothing is left of it";
  // Leased ranges follow the same order.
  ModelOf(data, "ranges.safetensors",
          {limit, "data.spill_dir=" + folder, "train.sharing=ranges", "train.range_batches=16", "cluster.workers=2"},
          &ranges);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

}  // namespace
}  // namespace lodestone
