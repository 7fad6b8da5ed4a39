// Samples that are held out, groups of samples, and the sample of all partitions.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "tests/worker/data/test_files.h"
#include "worker/data/even_sample.h"
#include "worker/data/stored_dataset.h"

namespace lodestone::worker {
namespace {

constexpr int kLines = 2000;

// Sample i has the number i, and group i % 7.
std::string Numbered(int lines) {
  std::string content = "number,user,y\n";
  for (int i = 0; i < lines; ++i) {
    content += std::to_string(i) + ",u" + std::to_string(i % 7) + "," + std::to_string(i % 3 == 0) + "\n";
  }
  return content;
}

v1::Config NumberedConfig(const std::string& name, double share) {
  v1::Config config = FilesConfig(v1::DataConfig::CSV, {WriteFile(name, Numbered(kLines))});
  config.mutable_data()->mutable_csv()->add_numeric("number");
  config.mutable_data()->set_test_share(share);
  return config;
}

std::set<float> Numbers(const Dataset& dataset) {
  const Batch batch = ReadAll(dataset);
  return {batch.numeric.begin(), batch.numeric.end()};
}

TEST(HeldOut, IsTheSameForAllWorkersAndInNoPartition) {
  const v1::Config config = NumberedConfig("held.csv", 0.2);
  std::set<float> held, trained;
  uint64_t samples = 0;
  for (uint32_t index = 0; index < 3; ++index) {
    const auto data = Load(config, LabelKind::kClass, {index, 3});
    ASSERT_TRUE(data.ok()) << data.status();
    const std::set<float> test = Numbers(*data->test);
    if (index == 0) held = test;
    EXPECT_EQ(test, held) << "worker " << index;
    for (const float number : Numbers(*data->train)) EXPECT_TRUE(trained.insert(number).second) << number;
    samples = data->schema.train_samples;
  }
  // Five deviations of a binomial distribution.
  EXPECT_NEAR(static_cast<double>(held.size()), 0.2 * kLines, 5 * std::sqrt(0.2 * 0.8 * kLines));
  EXPECT_EQ(held.size() + trained.size(), kLines);
  EXPECT_EQ(samples, trained.size()) << "held-out samples are none to train on";
  for (const float number : held) EXPECT_EQ(trained.count(number), 0) << number;
}

TEST(HeldOut, IsAnotherOneWithAnotherSeed) {
  v1::Config config = NumberedConfig("seeds.csv", 0.2);
  const auto first = Load(config);
  config.mutable_cluster()->set_seed(2);
  const auto second = Load(config);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(Numbers(*first->test), Numbers(*second->test));
}

TEST(HeldOut, CountsForNoStatisticAndNoClassShare) {
  const v1::Config config = NumberedConfig("counts.csv", 0.5);
  const auto data = Load(config);
  ASSERT_TRUE(data.ok()) << data.status();
  const std::vector<float> labels = ReadAll(*data->train).labels;
  ASSERT_EQ(data->schema.class_counts.size(), 2u);
  EXPECT_EQ(data->schema.class_counts[1], static_cast<uint64_t>(std::count(labels.begin(), labels.end(), 1.0f)));
  v1::Config standardized = config;
  standardized.mutable_data()->set_numeric(v1::STANDARDIZE);
  const auto scaled = Load(standardized);
  ASSERT_TRUE(scaled.ok()) << scaled.status();
  const std::vector<float> numbers = ReadAll(*scaled->train).numeric;
  // Of floats around 1, thousands of them.
  EXPECT_NEAR(std::accumulate(numbers.begin(), numbers.end(), 0.0) / static_cast<double>(numbers.size()), 0, 1e-5);
}

TEST(HeldOut, AClassThatIsAllHeldOutIsAClassAllTheSame) {
  std::string content = "number,user,y\n";
  for (int i = 0; i < 400; ++i) content += std::to_string(i) + ",u," + (i == 7 ? "rare" : "usual") + "\n";
  v1::Config config = FilesConfig(v1::DataConfig::CSV, {WriteFile("rare.csv", content)});
  config.mutable_data()->mutable_csv()->add_numeric("number");
  config.mutable_data()->set_test_share(0.5);
  for (uint64_t seed = 1; seed < 20; ++seed) {  // In some, the rare one is held out.
    config.mutable_cluster()->set_seed(seed);
    const auto data = Load(config);
    ASSERT_TRUE(data.ok()) << data.status();
    EXPECT_THAT(data->schema.class_names, testing::ElementsAre("rare", "usual"));
    EXPECT_EQ(data->schema.class_counts[0], Numbers(*data->test).count(7) > 0 ? 0u : 1u);
  }
}

TEST(HeldOut, WorksForImages) {
  std::string images("\0\0\x08\x03\0\0\x01\0\0\0\0\x01\0\0\0\x01", 16), labels("\0\0\x08\x01\0\0\x01\0", 8);
  for (int i = 0; i < 256; ++i) {
    images += static_cast<char>(i);
    labels += static_cast<char>(i % 2);
  }
  v1::Config config = FilesConfig(v1::DataConfig::IDX, {WriteFile("x-images-idx3-ubyte", images)});
  WriteFile("x-labels-idx1-ubyte", labels);
  config.mutable_data()->set_test_share(0.25);
  std::set<float> seen;
  for (uint32_t index = 0; index < 2; ++index) {
    const auto data = Load(config, LabelKind::kClass, {index, 2});
    ASSERT_TRUE(data.ok()) << data.status();
    for (const float pixel : Numbers(*data->train)) EXPECT_TRUE(seen.insert(pixel).second);
    if (index > 0) continue;
    for (const float pixel : Numbers(*data->test)) EXPECT_TRUE(seen.insert(pixel).second);
    EXPECT_EQ(data->train_sample->size() + data->test->size(), 256u) << "of both partitions";
  }
  EXPECT_EQ(seen.size(), 256u);
}

TEST(HeldOut, WhatMakesNoSenseIsRefusedWithWhatToDo) {
  v1::Config config = NumberedConfig("both.csv", 0.2);
  config.mutable_data()->add_test(config.data().train(0));
  ExpectError(Load(config), {"data.test", "data.test_share", "leave one of them out"});
  ExpectError(Load(NumberedConfig("none.csv", 1e-9)), {"data.test_share", "none to test with"});
  v1::Config generated;
  generated.mutable_data()->set_format(v1::DataConfig::GENERATED);
  generated.mutable_data()->set_test_share(0.2);
  ExpectError(Load(generated), {"data.test_share is for files", "test_samples"});
}

TEST(HeldOut, OtherWorkersKeepNoMoreThanAValidationReads) {
  v1::Config config = NumberedConfig("most.csv", 0.5);
  config.mutable_train()->mutable_validate()->set_samples_max(100);
  const auto first = Load(config, LabelKind::kClass, {0, 2}), second = Load(config, LabelKind::kClass, {1, 2});
  ASSERT_TRUE(first.ok() && second.ok());
  const Batch all = ReadAll(*first->test), some = ReadAll(*second->test);
  ASSERT_LE(some.size, 100u);
  ASSERT_GE(some.size, 50u);
  const uint64_t stride = EvenStride(all.size, 100);
  for (size_t i = 0; i < some.size; ++i) EXPECT_EQ(some.numeric[i], all.numeric[i * stride]) << "the same ones";
}

TEST(TrainSample, CoversAllPartitionsEvenly) {
  v1::Config config = NumberedConfig("sample.csv", 0);
  config.mutable_train()->set_evaluate_train_samples_max(300);
  const auto first = Load(config, LabelKind::kClass, {0, 2}), second = Load(config, LabelKind::kClass, {1, 2});
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_NE(first->train_sample, nullptr);
  EXPECT_EQ(second->train_sample, nullptr) << "it does not evaluate";
  const std::set<float> sample = Numbers(*first->train_sample), own = Numbers(*first->train),
                        other = Numbers(*second->train);
  EXPECT_LE(sample.size(), 300u);
  EXPECT_GE(sample.size(), 150u);
  size_t of_own = 0, of_other = 0;
  for (const float number : sample) {
    of_own += own.count(number);
    of_other += other.count(number);
  }
  EXPECT_EQ(of_own + of_other, sample.size());
  // Five deviations of a fair coin.
  EXPECT_NEAR(static_cast<double>(of_own), 0.5 * sample.size(), 2.5 * std::sqrt(sample.size()));
  EXPECT_GT(*sample.rbegin(), kLines - kLines / 100) << "to the end of the file";
  EXPECT_EQ(Load(config)->train_sample, nullptr) << "one partition is all";
}

TEST(TrainSample, MakesRoomForTheTestSet) {
  v1::Config config = NumberedConfig("roomy.csv", 0);
  config.mutable_data()->add_test(Copied(config.data().train(0)));
  config.mutable_train()->set_evaluate_train_samples_max(2000);
  // A partition's 1000 samples and 2000 of the test set, of a label and a number, and a little more.
  config.mutable_data()->set_memory_max_bytes(3000 * 8 + 200);
  const auto data = Load(config, LabelKind::kClass, {0, 2});
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_LE(data->memory_bytes, config.data().memory_max_bytes());
  EXPECT_EQ(data->test->size(), 2000u);
}

TEST(TrainSample, TakesNoMemoryThatIsNotThere) {
  v1::Config config = NumberedConfig("tight.csv", 0);
  // A partition has 1000 samples of a label and a number; little is left.
  config.mutable_data()->set_memory_max_bytes(1000 * 8 + 200);
  const auto data = Load(config, LabelKind::kClass, {0, 2});
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_LE(data->train_sample->size(), 200 / 8);
  EXPECT_GE(data->train_sample->size(), 1u);
}

TEST(TrainSample, OfGeneratedSamplesIsAllOfThem) {
  v1::Config config;
  config.mutable_data()->mutable_generated()->set_train_samples(1001);
  config.mutable_data()->mutable_generated()->set_test_samples(10);
  const auto data = Load(config, LabelKind::kClass, {0, 3}), whole = Load(config);
  ASSERT_TRUE(data.ok() && whole.ok());
  EXPECT_EQ(ReadAll(*data->train_sample).keys, ReadAll(*whole->train).keys);
}

TEST(EvenSample, HasEachSoManyThFromTheFirstOn) {
  for (const uint64_t offered : {1, 10, 11, 20, 21, 1000}) {
    EvenSample<StoredDataset> sample(std::make_unique<StoredDataset>(1, 0, false), 10);
    for (uint64_t i = 0; i < offered; ++i) {
      ParsedLine line;
      line.numeric = {static_cast<float>(i)};
      sample.Offer(0.0f, line);
    }
    const std::vector<float> numbers = ReadAll(*sample.Take()).numeric;
    const uint64_t stride = EvenStride(offered, 10);
    ASSERT_EQ(numbers.size(), (offered + stride - 1) / stride);
    EXPECT_LE(numbers.size(), 10u);
    for (size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(numbers[i], static_cast<float>(i * stride));
  }
}

TEST(Groups, AreOfTheColumnThatIsNamedAndItIsNoFeatureUnlessNamed) {
  v1::Config config = FilesConfig(v1::DataConfig::CSV, {WriteFile("groups.csv", Numbered(70))});
  config.mutable_data()->mutable_csv()->set_group("user");
  const auto data = Load(config);  // All other columns are numeric by default.
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->schema.numeric_count, 1u);
  EXPECT_EQ(data->schema.description.group(), "user");
  const Batch batch = ReadAll(*data->train);
  ASSERT_EQ(batch.groups.size(), 70u);
  std::map<uint64_t, int> users;
  for (size_t i = 0; i < batch.size; ++i) {
    const auto [known, inserted] = users.emplace(batch.groups[i], static_cast<int>(i) % 7);
    EXPECT_EQ(known->second, static_cast<int>(i) % 7) << "line " << i;
  }
  EXPECT_EQ(users.size(), 7u);

  config.mutable_data()->mutable_csv()->add_categorical("user");
  config.mutable_data()->mutable_csv()->add_numeric("number");
  EXPECT_EQ(Load(config)->schema.field_count, 1u) << "and a feature too";
  config.mutable_data()->mutable_csv()->set_group("nobody");
  ExpectError(Load(config), {"csv.group", "nobody"});
  v1::Config sparse = FilesConfig(v1::DataConfig::LIBSVM, {WriteFile("groups.svm", "1 1:1\n0 2:1\n")});
  sparse.mutable_data()->mutable_csv()->set_group("user");
  ExpectError(Load(sparse), {"csv.group", "libsvm"});
}

}  // namespace
}  // namespace lodestone::worker
