// Data that memory has no room for: the same samples, read from a disk.
#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "tests/worker/data/test_files.h"
#include "worker/data/epoch_batches.h"
#include "worker/data/spill_file.h"
#include "worker/data/stored_dataset.h"

namespace lodestone::worker {
namespace {

constexpr uint64_t kSpillSeed = 20261123;

std::string SpillFolder() {
  const std::string folder = TestPath("spill/of/tests");
  std::filesystem::remove_all(folder);
  return folder;
}

void ExpectSameSamples(const Dataset& a, const Dataset& b) {
  ASSERT_EQ(a.size(), b.size());
  const Batch one = ReadAll(a), other = ReadAll(b);
  EXPECT_EQ(one.labels, other.labels);
  EXPECT_EQ(one.numeric, other.numeric);
  EXPECT_EQ(one.offsets, other.offsets);
  EXPECT_EQ(one.keys, other.keys);
  EXPECT_EQ(one.values, other.values);
  EXPECT_EQ(one.groups, other.groups);
}

// Loads it with so much memory, and with enough; expects the same, most of it from the disk.
void ExpectSameFromDisk(v1::Config config, uint64_t memory, Partition partition = {},
                        LabelKind kind = LabelKind::kClass) {
  const auto whole = Load(config, kind, partition);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->spilled_bytes, 0u);
  const std::string folder = SpillFolder();
  config.mutable_data()->set_memory_max_bytes(memory);
  config.mutable_data()->set_spill_dir(folder);
  const auto spilled = Load(config, kind, partition);
  ASSERT_TRUE(spilled.ok()) << spilled.status();
  EXPECT_GT(spilled->spilled_bytes, whole->memory_bytes / 2);
  EXPECT_LE(spilled->memory_bytes + spilled->spilled_bytes, whole->memory_bytes + 4096);
  EXPECT_TRUE(std::filesystem::is_empty(folder)) << "the file has no name";
  ExpectSameSamples(*spilled->train, *whole->train);
  if (whole->test != nullptr) ExpectSameSamples(*spilled->test, *whole->test);
  spilled->train->WillRead(0, spilled->train->size());
  spilled->train->WillRead(spilled->train->size() - 1, 1);
  std::string described, again;
  whole->schema.description.SerializeToString(&described);
  spilled->schema.description.SerializeToString(&again);
  EXPECT_EQ(described, again);
}

// Lines of CSV: a number that is missing now and then, a category, a user and one of three classes, the first last.
std::string CsvOf(int lines) {
  std::string content = "x,c,user,y\n";
  for (int i = 0; i < lines; ++i) {
    absl::StrAppend(&content, i % 13 == 0 ? "" : absl::StrCat(RandomNormal(kSpillSeed, i) * 1000), ",c", i % 97, ",u",
                    i / 5, ",",
                    i < lines / 2 ? "c"
                    : i % 2 == 0  ? "b"
                                  : "a",
                    "\n");
  }
  return content;
}

v1::Config CsvConfig(const std::string& name, int lines) {
  v1::Config config = FilesConfig(v1::DataConfig::CSV, {WriteFile(name, CsvOf(lines))});
  config.mutable_data()->set_numeric(v1::STANDARDIZE);
  config.mutable_data()->mutable_csv()->add_numeric("x");
  config.mutable_data()->mutable_csv()->add_categorical("c");
  config.mutable_data()->mutable_csv()->set_group("user");
  return config;
}

TEST(Spill, SamplesOfColumnsAreTheSameFromTheDisk) {
  v1::Config config = CsvConfig("spilled.csv", 20'000);
  config.mutable_data()->set_test_share(0.3);
  ExpectSameFromDisk(config, 30'000);
  ExpectSameFromDisk(config, 0);
  ExpectSameFromDisk(config, 30'000, {1, 2});
}

TEST(Spill, ATestSetOfItsOwnIsTheSameFromTheDisk) {
  v1::Config config = CsvConfig("spilled_train.csv", 5'000);
  config.mutable_data()->add_test(WriteFile("spilled_test.csv", CsvOf(7'000)));
  ExpectSameFromDisk(config, 20'000);
}

TEST(Spill, SparseSamplesAreTheSameFromTheDisk) {
  // Of odd numbers of features, so that chunks are of all sizes; the first half has values of 1 only.
  std::string content;
  for (int i = 0; i < 12'000; ++i) {
    absl::StrAppend(&content, 0.5 * (i % 7));
    for (int f = 0; f < i % 5; ++f) absl::StrAppend(&content, " ", i + f, ":", i < 6'000 ? 1 : i % 3);
    content += "\n";
  }
  const v1::Config config = FilesConfig(v1::DataConfig::LIBSVM, {WriteFile("spilled.svm", content)});
  ExpectSameFromDisk(config, 10'000);
  ExpectSameFromDisk(config, 10'000, {}, LabelKind::kNumber);
}

TEST(Spill, ImagesAreTheSameFromTheDisk) {
  constexpr int kImages = 6'000, kSide = 28;
  std::string images("\0\0\x08\x03\0\0\x17\x70\0\0\0\x1c\0\0\0\x1c", 16), labels("\0\0\x08\x01\0\0\x17\x70", 8);
  for (int i = 0; i < kImages; ++i) {
    for (int p = 0; p < kSide * kSide; ++p) images += static_cast<char>(RandomBits(kSpillSeed + i, p) % 200);
    labels += static_cast<char>(i % 10);
  }
  v1::Config config = FilesConfig(v1::DataConfig::IDX, {WriteFile("spilled-images-idx3-ubyte", images)});
  WriteFile("spilled-labels-idx1-ubyte", labels);
  config.mutable_data()->set_numeric(v1::STANDARDIZE);
  config.mutable_data()->set_test_share(0.2);
  ExpectSameFromDisk(config, 1'500'000);
}

TEST(Spill, ASampleOfAllPartitionsHasAPartOfTheMemory) {
  v1::Config config = CsvConfig("spilled_sample.csv", 20'000);
  config.mutable_data()->set_memory_max_bytes(40'000);
  config.mutable_data()->set_spill_dir(SpillFolder());
  const auto data = Load(config, LabelKind::kClass, {0, 2});
  ASSERT_TRUE(data.ok()) << data.status();
  ASSERT_NE(data->train_sample, nullptr);
  // 24 bytes each: a label, a number, a key and a group.
  EXPECT_LE(data->train_sample->size(), 10'000 / 24);
  EXPECT_GE(data->train_sample->size(), 10'000 / 24 / 2);
}

TEST(Spill, SamplesThatAreThinnedOutOnTheDiskComeBackIntoMemory) {
  StoredDataset data(1, 0, false);
  for (int i = 0; i < 5'000; ++i) {
    ParsedLine line;
    line.numeric = {static_cast<float>(i)};
    data.Append(0, line);
  }
  const std::string folder = SpillFolder();
  for (int i = 0; i < 4; ++i) {
    const auto spilled = data.SpillNewest(folder);
    ASSERT_TRUE(spilled.ok()) << spilled.status();
    EXPECT_TRUE(*spilled);
  }
  EXPECT_FALSE(*data.SpillNewest(folder)) << "the last chunk is not whole";
  data.KeepEverySecond();
  EXPECT_EQ(data.spilled_bytes(), 0u);
  ASSERT_TRUE(data.Finish({}, Standardizer({})).ok());
  const Batch batch = ReadAll(data);
  ASSERT_EQ(batch.size, 2'500u);
  for (size_t i = 0; i < batch.size; ++i) EXPECT_EQ(batch.numeric[i], static_cast<float>(2 * i));
}

TEST(Spill, WithoutAFolderTheErrorSaysWhatToSet) {
  v1::Config config = CsvConfig("unspilled.csv", 2'000);
  config.mutable_data()->set_memory_max_bytes(1'000);
  ExpectError(Load(config), {"data.spill_dir", "data.memory_max_bytes", "more workers"});
}

TEST(Spill, AFolderThatCannotBeMadeIsNamed) {
  v1::Config config = CsvConfig("unmade.csv", 2'000);
  config.mutable_data()->set_memory_max_bytes(1'000);
  const std::string folder = WriteFile("a_file", "") + "/folder";
  config.mutable_data()->set_spill_dir(folder);
  ExpectError(Load(config), {"data.spill_dir", folder});
}

TEST(Spill, AFullDiskIsNamedWithTheBytesThatItTook) {
  v1::Config config = CsvConfig("full.csv", 20'000);
  config.mutable_data()->set_memory_max_bytes(10'000);
  const std::string folder = SpillFolder();
  config.mutable_data()->set_spill_dir(folder);
  // Files may grow to 100,000 bytes: as a full disk, but for the reason. What is longer already can be read.
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  rlimit little = before;
  little.rlim_cur = 100'000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &little), 0);
  const auto data = Load(config);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
  ExpectError(data, {"data.spill_dir", folder, "100000 bytes", "data.memory_max_bytes"});
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

// Bytes of the process' own memory, which is in no file.
uint64_t AnonymousBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    uint64_t kilobytes = 0;
    if (word == "RssAnon:" && status >> kilobytes) return kilobytes << 10;
  }
  return 0;
}

// Reads ten times the memory that it may take, and an epoch of it. Gives what memory grew by, at most; 0 if it failed.
uint64_t GrowthWhileRead(const v1::Config& config) {
  malloc_trim(0);
  const uint64_t before = AnonymousBytes();
  uint64_t most = before;
  const auto data = LoadData(config, LabelKind::kClass, {}, true,
                             [&](uint64_t, uint64_t) { most = std::max(most, AnonymousBytes()); });
  if (!data.ok() || data->spilled_bytes < 9 * config.data().memory_max_bytes()) return 0;
  EpochBatches batches(data->train->size(), 1, 256, kSpillSeed, true, EpochBatches::WindowOf(config));
  batches.ReadAheadIn(data->train.get());
  std::vector<uint64_t> indices;
  Batch batch;
  for (int i = 0; batches.Next(&indices); ++i) {
    data->train->Read(indices, &batch);
    if (i % 16 == 0) most = std::max(most, AnonymousBytes());
  }
  return std::max<uint64_t>(1, most - before);
}

TEST(Spill, TenTimesTheMemoryIsReadInThatMemory) {
  // 110 bytes of line, about, that take 312 bytes of memory: a label, a number and 38 categories.
  constexpr uint64_t kMemory = 8 << 20;
  std::string content;
  for (uint64_t i = 0; content.size() < 30'000'000; ++i) {
    absl::StrAppend(&content, i % 2, ",", i);
    for (int c = 0; c < 38; ++c) absl::StrAppend(&content, ",", RandomBits(i, c) % 10);
    content += "\n";
  }
  v1::Config config = FilesConfig(v1::DataConfig::CSV, {WriteFile("ten_times.csv", content)});
  content = {};
  v1::CsvConfig& csv = *config.mutable_data()->mutable_csv();
  csv.set_label("0");
  csv.add_numeric("1");
  csv.add_categorical("2-39");
  config.mutable_data()->set_memory_max_bytes(kMemory);
  config.mutable_data()->set_spill_dir(SpillFolder());
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  const pid_t child = fork();
  if (child == 0) {
    const uint64_t growth = GrowthWhileRead(config);
    (void)!write(pipe_fds[1], &growth, sizeof(growth));
    _exit(0);
  }
  uint64_t growth = 0;
  close(pipe_fds[1]);
  ASSERT_EQ(read(pipe_fds[0], &growth, sizeof(growth)), static_cast<ssize_t>(sizeof(growth)));
  close(pipe_fds[0]);
  waitpid(child, nullptr, 0);
  ASSERT_GT(growth, 0u) << "it failed, or had less than ten times the memory";
#ifndef __has_feature
#define __has_feature(name) 0  // It is clang's.
#endif
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !__has_feature(address_sanitizer)
  // Beside the samples are the buffers of files, of a chunk and of a batch.
  EXPECT_LT(growth, kMemory + (6 << 20));
#endif
  std::printf("%llu bytes of memory for %llu\n", static_cast<unsigned long long>(growth),
              static_cast<unsigned long long>(kMemory));
}

// What it is told of is noted.
class NotingDataset final : public Dataset {
 public:
  explicit NotingDataset(uint64_t size) : told_(size) {}
  uint64_t size() const override { return told_.size(); }
  void Read(std::span<const uint64_t>, Batch*) const override {}
  void WillRead(uint64_t first, uint64_t count) const override {
    for (uint64_t i = first; i < first + count; ++i) ++told_.at(i);
  }
  mutable std::vector<int> told_;  // By sample: how often.
};

TEST(ReadAhead, IsToldOfEverySampleBeforeItIsReadAndOfNoneTwice) {
  for (const bool shuffle : {true, false}) {
    constexpr uint64_t kSize = 30'011;
    NotingDataset data(kSize);
    EpochBatches batches(kSize, 2.5, 64, kSpillSeed, shuffle, /*window=*/2'000);
    batches.ReadAheadIn(&data);
    std::vector<int> read(kSize, 0);
    std::vector<uint64_t> indices;
    while (batches.Next(&indices)) {
      for (const uint64_t i : indices) ASSERT_GE(data.told_[i], ++read[i]) << "sample " << i;
    }
    EXPECT_LE(*std::max_element(data.told_.begin(), data.told_.end()), 3);
  }
}

TEST(ReadAhead, FollowsRangesThatLieElsewhere) {
  constexpr uint64_t kSize = 20'000, kBatch = 50;
  NotingDataset data(kSize);
  EpochBatches batches(kSize, 2, kBatch, kSpillSeed, true, /*window=*/2'000);
  batches.ReadAheadIn(&data);
  std::vector<uint64_t> indices;
  for (const uint64_t number : {700, 701, 20, 21, 399, 400, 0, 799}) {
    batches.Read(number, &indices);
    for (const uint64_t i : indices) ASSERT_GT(data.told_[i], 0) << "batch " << number;
  }
}

}  // namespace
}  // namespace lodestone::worker
