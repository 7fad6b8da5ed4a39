#include <algorithm>

#include "tests/worker/data/test_files.h"

namespace lodestone::worker {
namespace {

void ExpectSameSchema(const Schema& a, const Schema& b) {
  EXPECT_EQ(a.numeric_count, b.numeric_count);
  EXPECT_EQ(a.field_count, b.field_count);
  EXPECT_EQ(a.sparse, b.sparse);
  EXPECT_EQ(a.class_names, b.class_names);
  EXPECT_EQ(a.class_counts, b.class_counts);
  EXPECT_EQ(a.label_mean, b.label_mean);
  EXPECT_EQ(a.train_samples, b.train_samples);
}

// Expects that `count` partitions, taken in turns, are the whole, value for value.
void ExpectPartsOfTheWhole(const v1::Config& config, LabelKind labels, uint32_t count) {
  const auto whole = Load(config, labels);
  ASSERT_TRUE(whole.ok()) << whole.status();
  uint64_t total = 0;
  for (uint32_t index = 0; index < count; ++index) {
    const auto part = Load(config, labels, {index, count});
    ASSERT_TRUE(part.ok()) << part.status();
    ExpectSameSchema(part->schema, whole->schema);
    total += part->train->size();
    const std::vector<uint64_t> indices = SamplesOf(config, index, count, whole->train->size());
    ASSERT_EQ(part->train->size(), indices.size());
    Batch expected;
    whole->train->Read(indices, &expected);
    const Batch batch = ReadAll(*part->train);
    EXPECT_EQ(batch.labels, expected.labels);
    EXPECT_EQ(batch.numeric, expected.numeric);
    EXPECT_EQ(batch.keys, expected.keys);
    EXPECT_EQ(batch.values, expected.values);
    EXPECT_EQ(batch.offsets, expected.offsets);
  }
  EXPECT_EQ(total, whole->schema.train_samples);
}

TEST(Partition, LibsvmPartsAreTheWhole) {
  std::string a, b;
  for (int i = 0; i < 100; ++i) {
    // Sorted by label, so that some partitions of few samples would miss a class.
    a += std::to_string(i / 25) + " " + std::to_string(i) + ":2 " + std::to_string(i * i) + ":0.5\n";
    b += "9 " + std::to_string(i) + ":3\n";
  }
  const auto config = FilesConfig(v1::DataConfig::LIBSVM, {WriteFile("a.svm", a), WriteFile("b.svm.gz", Packed(b))});
  for (uint32_t count : {1, 2, 3, 7}) ExpectPartsOfTheWhole(config, LabelKind::kClass, count);
}

TEST(Partition, CsvPartsAreTheWholeAndStandardizedAlike) {
  std::string content = "x,c,y\n";
  for (int i = 0; i < 101; ++i) {
    content += std::to_string(i * i * 0.37) + "," + std::to_string(i % 5) + "," + std::to_string(i % 3) + "\n";
  }
  auto config = FilesConfig(v1::DataConfig::CSV, {WriteFile("p.csv", content)});
  config.mutable_data()->set_numeric(v1::STANDARDIZE);
  config.mutable_data()->mutable_csv()->add_numeric("x");
  config.mutable_data()->mutable_csv()->add_categorical("c");
  for (uint32_t count : {2, 5}) {
    ExpectPartsOfTheWhole(config, LabelKind::kClass, count);
    ExpectPartsOfTheWhole(config, LabelKind::kNumber, count);
  }
}

TEST(Partition, GeneratedPartsAreTheWhole) {
  v1::Config config;
  config.mutable_data()->mutable_generated()->set_train_samples(1001);
  config.mutable_data()->mutable_generated()->set_test_samples(10);
  ExpectPartsOfTheWhole(config, LabelKind::kClass, 3);
  config.mutable_data()->mutable_generated()->set_kind(v1::GeneratedConfig::RATINGS);
  ExpectPartsOfTheWhole(config, LabelKind::kNumber, 4);
}

TEST(Partition, MayBeEmptyWhereThereAreFewSamples) {
  const auto config = FilesConfig(v1::DataConfig::LIBSVM, {WriteFile("few", "1 1:1\n0 2:1\n")});
  std::vector<uint64_t> sizes;
  for (uint32_t index = 0; index < 3; ++index) {
    const auto data = Load(config, LabelKind::kClass, {index, 3});
    ASSERT_TRUE(data.ok()) << data.status();
    EXPECT_EQ(data->schema.train_samples, 2);
    sizes.push_back(data->train->size());
  }
  EXPECT_THAT(sizes, testing::UnorderedElementsAre(0, 1, 1));
  v1::Config generated;
  generated.mutable_data()->mutable_generated()->set_train_samples(2);
  const auto clicks = Load(generated, LabelKind::kClass, {2, 3});
  ASSERT_TRUE(clicks.ok()) << clicks.status();
  EXPECT_EQ(clicks->train->size(), 0);
}

// A sample went to the worker that its number modulo the workers named: of labels that alternate, each of two workers
// saw one class only, and what they learned together was worse.
TEST(Partition, IsAFairSampleOfAFileWithAPeriod) {
  for (const uint32_t period : {2, 3, 4}) {
    std::string content;
    for (uint32_t i = 0; i < 6000; ++i) content += std::to_string(i % period == 0) + " 1:1\n";
    const auto config = FilesConfig(v1::DataConfig::LIBSVM, {WriteFile("period", content)});
    for (const uint32_t count : {2u, 3u, 4u}) {
      for (uint32_t index = 0; index < count; ++index) {
        const auto part = Load(config, LabelKind::kClass, {index, count});
        ASSERT_TRUE(part.ok()) << part.status();
        const std::vector<float> labels = ReadAll(*part->train).labels;
        EXPECT_EQ(labels.size(), 6000 / count);
        const double positive = std::accumulate(labels.begin(), labels.end(), 0.0) / static_cast<double>(labels.size());
        EXPECT_NEAR(positive, 1.0 / period, 0.06) << "worker " << index << " of " << count << ", period " << period;
      }
    }
  }
}

TEST(Partition, OfNoneIsRefused) {
  EXPECT_FALSE(Load(v1::Config(), LabelKind::kClass, {0, 0}).ok());
  EXPECT_FALSE(Load(v1::Config(), LabelKind::kClass, {2, 2}).ok());
}

TEST(Partition, HasATestSetOnlyIfAsked) {
  const std::string path = WriteFile("asked", "1 1:1\n0 2:1\n");
  const auto config = FilesConfig(v1::DataConfig::LIBSVM, {path}, {path, TestPath("missing")});
  const auto data = LoadData(config, LabelKind::kClass, {}, /*with_test=*/false, nullptr);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->test, nullptr);
}

TEST(Partition, IsRefusedIfItTakesMoreMemoryThanItMay) {
  std::string content;
  for (int i = 0; i < 1000; ++i) content += std::to_string(i % 2) + " 1:1 2:1 3:1\n";
  const std::string path = WriteFile("memory", content);
  auto config = FilesConfig(v1::DataConfig::LIBSVM, {path});
  // Four bytes of label, eight of offset, three keys of eight.
  config.mutable_data()->set_memory_max_bytes(36 * 1000);
  EXPECT_TRUE(Load(config).ok());
  config.mutable_data()->set_memory_max_bytes(36 * 1000 - 1);
  ExpectError(Load(config), {"data.memory_max_bytes"});
  EXPECT_TRUE(Load(config, LabelKind::kClass, {0, 2}).ok());
  config.mutable_data()->add_test(Copied(path));
  ExpectError(Load(config, LabelKind::kClass, {0, 2}), {"data.memory_max_bytes"});
}

}  // namespace
}  // namespace lodestone::worker
