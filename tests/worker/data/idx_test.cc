#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <new>

#include "tests/worker/data/test_files.h"

// The largest piece of memory that was asked for. It is not noted where a sanitizer has operators of its own.
namespace {
std::atomic<size_t> largest{0};
}  // namespace

#ifndef LODESTONE_SANITIZER
// Not inlined: GCC would see free() of what it knows to be new.
__attribute__((noinline)) void* operator new(size_t size) {
  for (size_t before = largest.load(); before < size && !largest.compare_exchange_weak(before, size);) {
  }
  if (void* const memory = std::malloc(std::max<size_t>(1, size)); memory != nullptr) return memory;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, size_t) noexcept { std::free(memory); }
#endif

namespace lodestone::worker {
namespace {

constexpr auto kIdx = v1::DataConfig::IDX;

std::string BigEndian(uint32_t x) {
  return {static_cast<char>(x >> 24), static_cast<char>(x >> 16), static_cast<char>(x >> 8), static_cast<char>(x)};
}

// `count` images of 2 x 3 pixels; pixel p of image i is 10 * i + p.
std::string Images(uint32_t count) {
  std::string bytes = BigEndian(0x803) + BigEndian(count) + BigEndian(2) + BigEndian(3);
  for (uint32_t i = 0; i < count; ++i) {
    for (uint32_t p = 0; p < 6; ++p) bytes.push_back(static_cast<char>(10 * i + p));
  }
  return bytes;
}

std::string Labels(const std::vector<int>& labels) {
  std::string bytes = BigEndian(0x801) + BigEndian(static_cast<uint32_t>(labels.size()));
  for (int label : labels) bytes.push_back(static_cast<char>(label));
  return bytes;
}

TEST(Idx, ReadsImagesAndTheLabelFileBesideThem) {
  const std::string train = WriteFile("train-images-idx3-ubyte.gz", Packed(Images(5)));
  WriteFile("train-labels-idx1-ubyte.gz", Packed(Labels({3, 7, 3, 9, 7})));
  const std::string test = WriteFile("t10k-images-idx3-ubyte", Images(2));
  WriteFile("t10k-labels-idx1-ubyte.gz", Packed(Labels({9, 3})));
  for (auto format : {v1::DataConfig::AUTO, kIdx}) {
    const auto data = Load(FilesConfig(format, {train}, {test}));
    ASSERT_TRUE(data.ok()) << data.status();
    EXPECT_EQ(data->schema.numeric_count, 6);
    EXPECT_EQ(data->schema.class_names, (std::vector<std::string>{"3", "7", "9"}));
    EXPECT_EQ(data->schema.class_counts, (std::vector<uint64_t>{2, 2, 1}));
    const Batch batch = ReadAll(*data->train);
    EXPECT_EQ(batch.labels, (std::vector<float>{0, 1, 0, 2, 1}));
    EXPECT_EQ(batch.numeric[6 * 4 + 5], 45 / 255.0f);
    EXPECT_EQ(batch.offsets, std::vector<uint32_t>(6, 0));
    EXPECT_EQ(ReadAll(*data->test).labels, (std::vector<float>{2, 0}));
  }
}

TEST(Idx, PartsAreTheWholeOfSeveralFiles) {
  WriteFile("part1-images-idx3", Images(5));
  WriteFile("part1-labels-idx1", Labels({0, 1, 0, 1, 0}));
  WriteFile("part2-images-idx3", Images(4));
  WriteFile("part2-labels-idx1", Labels({2, 1, 2, 2}));
  auto config = FilesConfig(kIdx, {TestPath("part*-images-idx3")});
  config.mutable_data()->set_numeric(v1::STANDARDIZE);
  const auto whole = Load(config);
  ASSERT_TRUE(whole.ok()) << whole.status();
  const auto part = Load(config, LabelKind::kClass, {1, 2});
  ASSERT_TRUE(part.ok()) << part.status();
  Batch expected;
  whole->train->Read(SamplesOf(config, 1, 2, 9), &expected);
  const Batch batch = ReadAll(*part->train);
  EXPECT_EQ(batch.labels, expected.labels);
  EXPECT_EQ(batch.numeric, expected.numeric);
  EXPECT_EQ(part->schema.class_counts, whole->schema.class_counts);
}

TEST(Idx, TransformsPixels) {
  WriteFile("t-images-idx3", Images(3));
  WriteFile("t-labels-idx1", Labels({0, 1, 0}));
  auto config = FilesConfig(kIdx, {TestPath("t-images-idx3")});
  config.mutable_data()->set_numeric(v1::NONE);
  EXPECT_EQ(ReadAll(*Load(config)->train).numeric[13], 21);
  config.mutable_data()->set_numeric(v1::LOG);
  EXPECT_EQ(ReadAll(*Load(config)->train).numeric[13], static_cast<float>(std::log(22.0)));
  config.mutable_data()->set_numeric(v1::STANDARDIZE);
  // Every pixel is p, 10 + p, 20 + p: deviation sqrt(200 / 3); the float mean and factor round once each.
  const Batch batch = ReadAll(*Load(config)->train);
  EXPECT_NEAR(batch.numeric[1], -10 / std::sqrt(200 / 3.0), 1e-6);
  EXPECT_EQ(batch.numeric[7], 0);
}

TEST(Idx, TakesLabelFilesThatAreNamed) {
  auto config = FilesConfig(kIdx, {WriteFile("pictures", Images(2))});
  ExpectError(Load(config), {"pictures", "data.train_labels"});
  config.mutable_data()->add_train_labels(WriteFile("names", Labels({4, 5})));
  const auto data = Load(config, LabelKind::kNumber);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(ReadAll(*data->train).labels, (std::vector<float>{4, 5}));
  config.mutable_data()->add_train_labels(TestPath("names"));
  ExpectError(Load(config), {"data.train_labels", "2 label files for 1 image files"});
}

TEST(Idx, TellsWhatIsWrong) {
  const auto error = [](const std::string& images, const std::string& labels, const std::vector<std::string>& parts) {
    auto config = FilesConfig(kIdx, {WriteFile("w-images-idx3", images)});
    config.mutable_data()->add_train_labels(WriteFile("w-labels-idx1", labels));
    ExpectError(Load(config), parts);
  };
  const std::string good = Labels({0, 1, 2});
  error(Images(3), Labels({0, 1}), {"3 images", "2 labels"});
  error("hello world", good, {"w-images-idx3", "magic number is 0x68656c6c"});
  error(good, good, {"w-images-idx3", "0x00000801", "0x00000803"});
  error(Images(3), Images(3), {"w-labels-idx1", "0x00000803", "0x00000801"});
  error("\0", good, {"w-images-idx3", "magic"});
  error(Images(3).substr(0, 10), good, {"w-images-idx3", "header"});
  error(Images(3).substr(0, 30), good, {"w-images-idx3", "image 2 of 3"});
  error(Images(3), good.substr(0, 10), {"w-labels-idx1", "label 2 of 3"});
  error(Images(3) + "x", good, {"w-images-idx3", "more bytes"});
  error(BigEndian(0x803) + BigEndian(3) + BigEndian(0) + BigEndian(3), good, {"pixels"});
  error(BigEndian(0x803) + BigEndian(3) + BigEndian(~0u) + BigEndian(~0u), good, {"pixels"});
  error(Packed(Images(3)).substr(0, 25), good, {"w-images-idx3", "cut off"});
  ExpectError(Load(FilesConfig(kIdx, {WriteFile("alone-images-idx3", Images(1))})), {"alone-labels-idx1"});
}

TEST(Idx, TellsTestLabelsThatTrainingDoesNotKnow) {
  const std::string train = WriteFile("k-images-idx3", Images(2));
  WriteFile("k-labels-idx1", Labels({0, 1}));
  const std::string test = WriteFile("kt-images-idx3", Images(2));
  WriteFile("kt-labels-idx1", Labels({1, 5}));
  ExpectError(Load(FilesConfig(kIdx, {train}, {test})), {"kt-labels-idx1: label 1: label \"5\""});
}

TEST(Idx, IsRefusedIfItTakesMoreMemoryThanItMay) {
  auto config = FilesConfig(kIdx, {WriteFile("m-images-idx3", Images(10))});
  WriteFile("m-labels-idx1", Labels({0, 1, 0, 1, 0, 1, 0, 1, 0, 1}));
  config.mutable_data()->set_memory_max_bytes(10 * (6 + 4));
  EXPECT_TRUE(Load(config).ok());
  config.mutable_data()->set_memory_max_bytes(10 * (6 + 4) - 1);
  ExpectError(Load(config), {"data.memory_max_bytes"});
  // Means and deviations count: of each pixel two sums as doubles, and two floats.
  config.mutable_data()->set_numeric(v1::STANDARDIZE);
  config.mutable_data()->set_memory_max_bytes(10 * (6 + 4) + 6 * 24);
  EXPECT_TRUE(Load(config).ok());
  config.mutable_data()->set_memory_max_bytes(10 * (6 + 4) + 6 * 24 - 1);
  ExpectError(Load(config), {"data.memory_max_bytes"});
}

TEST(Idx, AHeaderTakesNoMemoryForWhatDoesNotCome) {
  const auto header = [](uint32_t magic, std::initializer_list<uint32_t> dimensions) {
    std::string bytes = BigEndian(magic);
    for (const uint32_t dimension : dimensions) bytes += BigEndian(dimension);
    return bytes + std::string(10, '\1');
  };
  const auto load = [](const std::string& images, const std::string& labels) {
    auto config = FilesConfig(kIdx, {WriteFile("l-images-idx3", images)});
    config.mutable_data()->add_train_labels(WriteFile("l-labels-idx1", labels));
    config.mutable_data()->set_numeric(v1::STANDARDIZE);
    config.mutable_data()->set_memory_max_bytes(uint64_t{16} << 30);
    largest = 0;
    return Load(config);
  };
  constexpr size_t kLittle = 16 << 20;
  const std::string large_image = header(0x803, {1, 8192, 8192}), one_label = header(0x801, {1});
  const std::string many_images = header(0x803, {1u << 31, 1, 1}), many_labels = header(0x801, {1u << 31});
  ExpectError(load(large_image, one_label), {"image 0 of 1"});
  EXPECT_LT(largest, kLittle);
  ExpectError(load(Packed(large_image), Packed(one_label)), {"image 0 of 1"});
  EXPECT_LT(largest, kLittle);
  ExpectError(load(many_images, many_labels), {"image 10 of 2147483648"});
  EXPECT_LT(largest, kLittle);
  ExpectError(load(Packed(many_images), Packed(many_labels)), {"image 10 of 2147483648"});
  EXPECT_LT(largest, kLittle);
}

}  // namespace
}  // namespace lodestone::worker
