// The real files of shared/data, which LODESTONE_DATA names; skipped where they are missing.
#include <cmath>
#include <filesystem>

#include "tests/worker/data/test_files.h"

namespace lodestone::worker {
namespace {

class RealData : public testing::Test {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("LODESTONE_DATA");
    folder_ = folder != nullptr ? folder : "../shared/data";
    if (!std::filesystem::is_directory(folder_)) {
      GTEST_SKIP() << "no real data in " << folder_ << " (LODESTONE_DATA names the folder)";
    }
  }

  // Loads files of the folder by their format as it is found.
  LoadedData LoadFrom(const std::string& train, const std::string& test) {
    auto data = Load(FilesConfig(v1::DataConfig::AUTO, {folder_ + "/" + train}, {folder_ + "/" + test}));
    EXPECT_TRUE(data.ok()) << data.status();
    return data.ok() ? *std::move(data) : LoadedData();
  }

  std::string folder_;
};

using Texts = std::vector<std::string>;

TEST_F(RealData, A9aIsReadWhole) {
  const LoadedData data = LoadFrom("a9a/a9a", "a9a/a9a.t");
  ASSERT_NE(data.test, nullptr);
  EXPECT_TRUE(data.schema.sparse);
  EXPECT_EQ(data.train->size(), 32561);
  EXPECT_EQ(data.test->size(), 16281);
  EXPECT_EQ(data.schema.class_names, (Texts{"-1", "+1"}));
  EXPECT_EQ(data.schema.class_counts, (std::vector<uint64_t>{24720, 7841}));
  const Batch batch = ReadAll(*data.train);
  EXPECT_EQ(std::vector<Key>(batch.keys.begin(), batch.keys.begin() + 5), (std::vector<Key>{3, 11, 14, 19, 39}));
  EXPECT_EQ(*std::max_element(batch.keys.begin(), batch.keys.end()), 123);
  EXPECT_TRUE(batch.values.empty());
}

TEST_F(RealData, AgaricusIsReadWhole) {
  const LoadedData data = LoadFrom("agaricus/agaricus.txt.train", "agaricus/agaricus.txt.test");
  ASSERT_NE(data.test, nullptr);
  EXPECT_EQ(data.train->size(), 6513);
  EXPECT_EQ(data.test->size(), 1611);
  EXPECT_EQ(data.schema.class_names, (Texts{"0", "1"}));
}

TEST_F(RealData, CriteoIsReadWhole) {
  const LoadedData data = LoadFrom("criteo/criteo_first8k_train.tsv", "criteo/criteo_first8k_test.tsv");
  ASSERT_NE(data.test, nullptr);
  EXPECT_EQ(data.train->size(), 7200);
  EXPECT_EQ(data.test->size(), 800);
  EXPECT_EQ(data.schema.numeric_count, 13);
  EXPECT_EQ(data.schema.field_count, 26);
  EXPECT_EQ(data.schema.class_names, (Texts{"0", "1"}));
  const Batch batch = ReadAll(*data.train);
  EXPECT_EQ(batch.numeric[2], static_cast<float>(std::log(6.0)));
  EXPECT_EQ(batch.keys.size(), 7200 * 26);
}

TEST_F(RealData, MnistIsReadWhole) {
  const LoadedData data = LoadFrom("mnist/train-images-idx3-ubyte.gz", "mnist/t10k-images-idx3-ubyte.gz");
  ASSERT_NE(data.test, nullptr);
  EXPECT_EQ(data.train->size(), 60000);
  EXPECT_EQ(data.test->size(), 10000);
  EXPECT_EQ(data.schema.numeric_count, 784);
  EXPECT_EQ(data.schema.class_counts,
            (std::vector<uint64_t>{5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949}));
  Batch batch;
  data.train->Read(std::vector<uint64_t>{0}, &batch);
  EXPECT_EQ(batch.labels[0], 5);
  EXPECT_EQ(*std::max_element(batch.numeric.begin(), batch.numeric.end()), 1.0f);
}

TEST_F(RealData, OptdigitsIsReadWhole) {
  const LoadedData data = LoadFrom("optdigits/optdigits.tra", "optdigits/optdigits.tes");
  ASSERT_NE(data.test, nullptr);
  EXPECT_EQ(data.train->size(), 3823);
  EXPECT_EQ(data.test->size(), 1797);
  EXPECT_EQ(data.schema.numeric_count, 64);
  EXPECT_EQ(data.schema.class_names, (Texts{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}));
  const Batch batch = ReadAll(*data.train);
  EXPECT_EQ(batch.numeric[3], 15);
}

}  // namespace
}  // namespace lodestone::worker
