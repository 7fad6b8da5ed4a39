// Criteo's log as NumPy arrays: the same samples as its lines, wherever files are read.
#include "worker/data/criteo_npy.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/hash.h"
#include "tests/worker/data/npy_files.h"
#include "worker/data/batch_builder.h"
#include "worker/data/data_survey.h"
#include "worker/data/sample_parser.h"
#include "worker/data/sample_stream.h"

namespace lodestone::worker {
namespace {

using testing::HasSubstr;

constexpr auto kCriteoNpy = v1::DataConfig::CRITEO_NPY;

void ExpectSameBatch(const Batch& batch, const Batch& expected) {
  EXPECT_EQ(batch.size, expected.size);
  EXPECT_EQ(batch.labels, expected.labels);
  EXPECT_EQ(batch.numeric, expected.numeric);
  EXPECT_EQ(batch.keys, expected.keys);
  EXPECT_EQ(batch.offsets, expected.offsets);
  EXPECT_EQ(batch.values, expected.values);
}

v1::Config LinesConfig(const std::string& path, v1::Transform numeric) {
  v1::Config config = FilesConfig(v1::DataConfig::CRITEO, {path});
  config.mutable_data()->set_numeric(numeric);
  return config;
}

std::shared_ptr<v1::ModelDescription> DescribedModel(const LoadedData& data) {
  auto model = std::make_shared<v1::ModelDescription>();
  *model->mutable_data() = data.schema.description;
  return model;
}

TEST(CriteoNpy, KeepsTheSamplesOfTheLinesThatNumPyMadeItOf) {
  const auto kept = Load(LinesConfig(GivenNpy("kept.tsv"), v1::NONE));
  const auto lines = Load(LinesConfig(GivenNpy("lines.tsv"), v1::NONE));
  ASSERT_TRUE(kept.ok() && lines.ok());
  for (const char* day : {"day_0_dense.npy", "day_1_dense.npy"}) {
    const auto npy = Load(FilesConfig(v1::DataConfig::AUTO, {GivenNpy(day)}));
    ASSERT_TRUE(npy.ok()) << npy.status();
    ExpectSameBatch(ReadAll(*npy->train), ReadAll(*kept->train));
    EXPECT_EQ(ReadAll(*npy->train).keys, ReadAll(*lines->train).keys) << "those of the log itself";
    EXPECT_EQ(npy->schema.class_names, lines->schema.class_names);
    EXPECT_EQ(npy->schema.class_counts, lines->schema.class_counts);
    v1::DataDescription described = npy->schema.description;
    EXPECT_EQ(described.format(), "criteo_npy");
    described.set_format("criteo");
    EXPECT_EQ(described.SerializeAsString(), kept->schema.description.SerializeAsString());
  }
}

// Arrays of the log's own integers are its lines under every transform.
TEST(CriteoNpy, ArraysOfIntegersAreTheLinesUnderEveryTransform) {
  const NpyDay day(2500);
  const std::string npy = day.Write("integers"), lines = WriteFile("integers.tsv", day.Lines());
  for (const v1::Transform transform : {v1::NONE, v1::LOG, v1::STANDARDIZE, v1::LOG_STANDARDIZE}) {
    v1::Config config = FilesConfig(kCriteoNpy, {npy});
    config.mutable_data()->set_numeric(transform);
    const auto arrays = Load(config), text = Load(LinesConfig(lines, transform));
    ASSERT_TRUE(arrays.ok()) << arrays.status();
    ASSERT_TRUE(text.ok()) << text.status();
    ExpectSameBatch(ReadAll(*arrays->train), ReadAll(*text->train));
  }
}

TEST(CriteoNpy, NanIsAMissingNumber) {
  NpyDay day(3);
  for (const size_t row : {0, 1, 2}) day.numbers[row * 13 + 5] = static_cast<float>(row * 2);
  day.numbers[13 + 5] = std::nanf("");
  day.dense = NpyOf("3, 13", day.numbers);
  v1::Config config = FilesConfig(kCriteoNpy, {day.Write("nan")});
  EXPECT_EQ(ReadAll(*Load(config)->train).numeric[13 + 5], 0);
  config.mutable_data()->set_numeric(v1::STANDARDIZE);
  const Batch batch = ReadAll(*Load(config)->train);
  EXPECT_EQ(batch.numeric[5], -1);  // Mean 2, deviation 2.
  EXPECT_EQ(batch.numeric[13 + 5], 0);
  EXPECT_EQ(batch.numeric[26 + 5], 1);
}

TEST(CriteoNpy, CategoriesOf64BitsAreThoseOf32) {
  NpyDay day(50);
  const Batch narrow = ReadAll(*Load(FilesConfig(kCriteoNpy, {day.Write("narrow")}))->train);
  std::vector<int64_t> wide, extended(day.categories.begin(), day.categories.end());
  for (const int32_t category : day.categories) wide.push_back(static_cast<uint32_t>(category));
  for (const auto& categories : {wide, extended}) {
    day.sparse = NpyOf("50, 26", categories);
    ExpectSameBatch(ReadAll(*Load(FilesConfig(kCriteoNpy, {day.Write("wide")}))->train), narrow);
  }
}

TEST(CriteoNpy, AGlobMayMatchAllThreeFilesOfADay) {
  const std::string folder = "globbed";
  std::filesystem::create_directories(TestPath(folder));
  const NpyDay first(30, 1), second(20, 2);
  first.Write(folder + "/day_0");
  second.Write(folder + "/day_1");
  const auto dense = Load(FilesConfig(kCriteoNpy, {TestPath(folder + "/day_*_dense.npy")}));
  const auto all = Load(FilesConfig(v1::DataConfig::AUTO, {TestPath(folder + "/*.npy")}));
  ASSERT_TRUE(dense.ok()) << dense.status();
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(dense->train->size(), 50u);
  ExpectSameBatch(ReadAll(*all->train), ReadAll(*dense->train));
  const std::string sparse = TestPath(folder + "/day_1_sparse.npy");
  ExpectError(Load(FilesConfig(kCriteoNpy, {sparse})),
              {"data.train: " + sparse, "name " + TestPath(folder + "/day_1_dense.npy")});
  ExpectError(Load(FilesConfig(v1::DataConfig::AUTO, {WriteFile("plain.npy", first.dense)})),
              {"plain.npy is not named", "day_0_dense.npy"});
  ExpectError(Load(FilesConfig(v1::DataConfig::AUTO, {WriteFile("x_dense.npy.gz", Packed(first.dense))})),
              {"x_dense.npy.gz", "unpack it"});
}

TEST(CriteoNpy, WorkersSpillHoldOutAndShareAsWithLines) {
  const NpyDay day(6000);
  const std::string npy = day.Write("parts"), lines = WriteFile("parts.tsv", day.Lines());
  const std::string test = NpyDay(300, 7).Write("held");
  v1::Config arrays = FilesConfig(kCriteoNpy, {npy}), text = LinesConfig(lines, v1::NONE);
  for (v1::Config* config : {&arrays, &text}) config->mutable_data()->set_test_share(0.2);
  for (uint32_t worker = 0; worker < 3; ++worker) {
    const auto a = Load(arrays, LabelKind::kClass, {worker, 3}), b = Load(text, LabelKind::kClass, {worker, 3});
    ASSERT_TRUE(a.ok() && b.ok()) << a.status() << b.status();
    ExpectSameBatch(ReadAll(*a->train), ReadAll(*b->train));
    ExpectSameBatch(ReadAll(*a->test), ReadAll(*b->test));
    EXPECT_EQ(a->parsed_bytes, 6000u * (13 * 4 + 26 * 4 + 4));
  }
  arrays.mutable_data()->set_memory_max_bytes(100'000);
  ExpectError(Load(arrays), {"data.spill_dir"});
  arrays.mutable_data()->set_spill_dir(TestPath("npy_spill"));
  const auto spilled = Load(arrays);
  ASSERT_TRUE(spilled.ok()) << spilled.status();
  EXPECT_GT(spilled->spilled_bytes, 1'000'000u);
  ExpectSameBatch(ReadAll(*spilled->train), ReadAll(*Load(text)->train));

  v1::Config share = FilesConfig(kCriteoNpy, {npy}, {test});
  share.mutable_data()->set_read(v1::DataConfig::SHARE);
  (*share.mutable_data()->mutable_label_map())["0"] = 0;
  (*share.mutable_data()->mutable_label_map())["1"] = 1;
  uint64_t samples = 0, parsed = 0;
  std::vector<Key> keys, all = ReadAll(*Load(FilesConfig(kCriteoNpy, {npy}))->train).keys;
  for (uint32_t worker = 0; worker < 3; ++worker) {
    const auto data = Load(share, LabelKind::kClass, {worker, 3});
    ASSERT_TRUE(data.ok()) << data.status();
    const Batch batch = ReadAll(*data->train);
    keys.insert(keys.end(), batch.keys.begin(), batch.keys.end());
    samples += batch.size;
    parsed += data->parsed_bytes;
    EXPECT_NEAR(batch.size, 2000, 3 * 30);  // To a few blocks of 25 rows.
    EXPECT_EQ(data->test->size(), 300u);
  }
  EXPECT_EQ(samples, 6000u);
  EXPECT_EQ(parsed, 6000u * 160);
  std::sort(keys.begin(), keys.end());
  std::sort(all.begin(), all.end());
  EXPECT_EQ(keys, all);
}

TEST(CriteoNpy, AModelPredictsItsFilesAndLines) {
  const NpyDay day(70);
  const std::string npy = day.Write("model");
  v1::Config config = FilesConfig(kCriteoNpy, {npy});
  config.mutable_data()->set_numeric(v1::STANDARDIZE);
  const auto data = Load(config);
  ASSERT_TRUE(data.ok()) << data.status();
  const Batch expected = ReadAll(*data->train);
  const auto model = DescribedModel(*data);
  Batch batch;
  std::vector<std::string> ids;
  for (const bool labels : {true, false}) {
    if (!labels) std::filesystem::remove(TestPath("model_labels.npy"));  // Then nobody needs them.
    const auto stream = SampleStream::Open(config.data(), model, {npy}, {.labels = labels, .id_column = ""});
    ASSERT_TRUE(stream.ok()) << stream.status();
    ASSERT_TRUE((*stream)->Next(100, &batch, &ids).ok());
    EXPECT_EQ(batch.numeric, expected.numeric);
    EXPECT_EQ(batch.keys, expected.keys);
    EXPECT_EQ(batch.labels, labels ? expected.labels : std::vector<float>(70, 0));
    EXPECT_EQ(ids.back(), "69");
  }
  const auto parser = SampleParser::OfLines(config.data(), model, "");
  ASSERT_TRUE(parser.ok()) << parser.status();
  ClearBatch(&batch);
  std::string lines = day.Lines();
  for (size_t at = 0; at < lines.size(); at = lines.find('\n', at) + 1) {
    ASSERT_TRUE((*parser)->AddLine(absl::string_view(lines).substr(at, lines.find('\n', at) - at), &batch).ok());
  }
  EXPECT_EQ(batch.numeric, expected.numeric);
  EXPECT_EQ(batch.keys, expected.keys);
  // Their categories are numbers: 1F, 1f and 0000001f are one.
  const auto keys_of = [&](const std::string& category) {
    ClearBatch(&batch);
    const std::string line = std::string(13, '\t') + category + std::string(25, '\t');
    const absl::Status added = (*parser)->AddLine(line, &batch);
    EXPECT_TRUE(added.ok()) << added;
    return batch.keys;
  };
  EXPECT_EQ(keys_of("1F"), keys_of("0000001f"));
  EXPECT_EQ(keys_of("1f")[0], StableHash("0000001f", 0));
  EXPECT_EQ(keys_of("0"), keys_of(""));
  EXPECT_THAT(std::string((*parser)->AddLine(std::string(13, '\t') + "xyz" + std::string(25, '\t'), &batch).message()),
              HasSubstr("\"xyz\" in category 1 is no hexadecimal number of 32 bits"));
}

TEST(CriteoNpy, AModelOfLinesIsNotTrainedOnArraysNorOnesOfAnotherTransform) {
  const NpyDay day(40);
  const std::string npy = day.Write("other");
  const auto lines = Load(LinesConfig(WriteFile("other.tsv", day.Lines()), v1::NONE));
  const auto load = [&](const LoadedData& known, v1::Transform numeric) {
    v1::Config config = FilesConfig(kCriteoNpy, {npy});
    config.mutable_data()->set_numeric(numeric);
    return LoadData(config, LabelKind::kClass, {}, true, nullptr, DescribedModel(known));
  };
  ExpectError(load(*lines, v1::NONE), {npy, "read as criteo_npy", "trained on criteo;"});
  const auto arrays = Load(FilesConfig(kCriteoNpy, {npy}));
  EXPECT_TRUE(load(*arrays, v1::DEFAULT).ok());
  ExpectError(load(*arrays, v1::LOG), {npy, "the transform none of the numbers"});
}

TEST(CriteoNpy, TheSurveySaysWhatIsInTheFiles) {
  const NpyDay day(400);
  const auto survey =
      SurveyData(FilesConfig(v1::DataConfig::AUTO, {day.Write("survey")}).data(), LabelKind::kClass, 100);
  ASSERT_TRUE(survey.ok()) << survey.status();
  EXPECT_EQ(survey->found.format, kCriteoNpy);
  EXPECT_FALSE(survey->whole);
  EXPECT_NEAR(survey->samples_about, 400, 40);
  ASSERT_EQ(survey->columns.size(), 39u);
  EXPECT_EQ(survey->columns[0].name, "I1");
  EXPECT_GT(survey->columns[0].greatest, 4000);
  EXPECT_EQ(survey->columns[13].name, "C1");
  EXPECT_NEAR(survey->columns[13].missing, 100 / 9, 11) << "zeros";
  EXPECT_GT(survey->columns[13].missing, 0u);
}

TEST(CriteoNpy, WhatIsWrongIsNamedWithFileAndByte) {
  const auto error = [](const NpyDay& day, const std::vector<std::string>& parts) {
    ExpectError(Load(FilesConfig(kCriteoNpy, {day.Write("wrong")})), parts);
  };
  const NpyDay good(5);
  NpyDay day = good;
  day.dense = NpyOf("4, 13", std::vector<float>(4 * 13));
  error(day, {"wrong_dense.npy has 4 rows of numbers, but ", "wrong_sparse.npy has 5 of categories"});
  day = good;
  day.labels = NpyOf("6,", std::vector<int32_t>(6));
  error(day, {"wrong_dense.npy has 5 rows", "wrong_labels.npy has 6 of labels"});
  day = good;
  day.labels = NpyOf("5, 1", std::vector<float>(5));
  error(day, {"wrong_labels.npy: byte 10: its dtype is \"<f4\" instead of int32 or int64"});
  day.labels = NpyOf("1, 5", std::vector<int32_t>(5));
  error(day, {"wrong_labels.npy: byte 10: its shape is [1, 5] instead of [N, 1] or [N]"});
  day = good;
  day.sparse = NpyOf("5, 25", std::vector<int32_t>(5 * 25));
  error(day, {"wrong_sparse.npy: byte 10: its shape is [5, 25] instead of [N, 26]"});
  day = good;
  day.sparse.pop_back();
  error(day, {"wrong_sparse.npy: byte 128: behind the header are 519 bytes instead of 5 rows of 104"});
  day = good;
  day.numbers[2 * 13 + 3] = -HUGE_VALF;
  day.dense = NpyOf("5, 13", day.numbers);
  error(day, {"wrong_dense.npy: row 2, column 3 (byte 244): the number is infinite"});
  day = good;
  std::vector<int64_t> wide(5 * 26, 1);
  wide[3 * 26 + 4] = int64_t{1} << 32;
  day.sparse = NpyOf("5, 26", wide);
  error(day, {"wrong_sparse.npy: row 3, column 4 (byte 784): 4294967296 is no category of 32 bits"});
  v1::Config tolerant = FilesConfig(kCriteoNpy, {TestPath("wrong_dense.npy")});
  tolerant.mutable_data()->set_bad_lines_max(1);
  EXPECT_EQ(Load(tolerant)->train->size(), 4u);
  day = good;
  day.labels = NpyOf("5,", std::vector<int32_t>{0, 1, 1, 0, -1});
  v1::Config mapped = FilesConfig(kCriteoNpy, {day.Write("mapped")});
  (*mapped.mutable_data()->mutable_label_map())["0"] = 0;
  (*mapped.mutable_data()->mutable_label_map())["1"] = 1;
  ExpectError(Load(mapped), {"mapped_labels.npy: row 4, column 0 (byte 144): ", "\"-1\""});

  const std::string alone = WriteFile("alone_dense.npy", good.dense);
  ExpectError(Load(FilesConfig(kCriteoNpy, {alone})), {alone + ": the categories of its rows are read from ",
                                                       "alone_sparse.npy beside it, which is not there"});
  WriteFile("alone_sparse.npy", good.sparse);
  ExpectError(Load(FilesConfig(kCriteoNpy, {alone})), {"the labels of its rows are read from", "alone_labels.npy"});
  ExpectError(Load(FilesConfig(kCriteoNpy, {NpyDay(0).Write("none")})), {"none_dense.npy: no sample"});
}

}  // namespace
}  // namespace lodestone::worker
