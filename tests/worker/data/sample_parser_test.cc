#include "worker/data/sample_parser.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/worker/data/test_files.h"
#include "worker/data/batch_builder.h"
#include "worker/data/sample_stream.h"

namespace lodestone::worker {
namespace {

using testing::HasSubstr;

using Parser = absl::StatusOr<std::unique_ptr<SampleParser>>;

std::shared_ptr<const v1::ModelDescription> ModelOf(const v1::Config& config) {
  const auto data = Load(config);
  EXPECT_TRUE(data.ok()) << data.status();
  auto model = std::make_shared<v1::ModelDescription>();
  *model->mutable_data() = data->schema.description;
  return model;
}

// A csv file with a header: "age" standardized, "pay", "city".
v1::Config Customers(const std::string& path) {
  v1::Config config = FilesConfig(v1::DataConfig::CSV, {path});
  v1::CsvConfig& csv = *config.mutable_data()->mutable_csv();
  csv.set_label("kind");
  csv.add_numeric("age");
  csv.add_numeric("pay");
  csv.add_categorical("city");
  (*csv.mutable_transform())["age"] = v1::STANDARDIZE;
  return config;
}

constexpr char kCustomers[] = "age,city,kind,pay\n10,Delft,b,1\n30,Gouda,a,2.5\n,,a,3\n";

void ExpectSame(const Batch& batch, const Batch& expected) {
  EXPECT_EQ(batch.size, expected.size);
  EXPECT_EQ(batch.numeric, expected.numeric);
  EXPECT_EQ(batch.keys, expected.keys);
  EXPECT_EQ(batch.values, expected.values);
  EXPECT_EQ(batch.offsets, expected.offsets);
}

// The batch of these lines.
Batch OfLines(const Parser& parser, const std::vector<std::string>& lines) {
  Batch batch;
  ClearBatch(&batch);
  EXPECT_TRUE(parser.ok()) << parser.status();
  for (const std::string& line : lines) {
    const absl::Status added = (*parser)->AddLine(line, &batch);
    EXPECT_TRUE(added.ok()) << added;
  }
  return batch;
}

TEST(SampleParserTest, LinesWithAHeaderInAnyOrderGiveWhatTheFileGives) {
  const v1::Config config = Customers(WriteFile("customers.csv", kCustomers));
  const auto model = ModelOf(config);
  const Batch expected = ReadAll(*Load(config)->train);
  ExpectSame(OfLines(SampleParser::OfLines(config.data(), model, "age,city,kind,pay"),
                     {"10,Delft,b,1", "30,Gouda,,2.5", ",,a,3"}),
             expected);
  ExpectSame(OfLines(SampleParser::OfLines(config.data(), model, "pay,other,age,city"),
                     {"1,x,10,Delft", "2.5,y,30,Gouda", "3,z,,"}),
             expected);
}

TEST(SampleParserTest, FieldsOfNamedColumnsGiveWhatTheFileGives) {
  const v1::Config config = Customers(WriteFile("customers.csv", kCustomers));
  const auto model = ModelOf(config);
  const Parser parser = SampleParser::OfColumns(config.data(), model, {"city", "pay", "age"});
  ASSERT_TRUE(parser.ok()) << parser.status();
  Batch batch;
  ClearBatch(&batch);
  ASSERT_TRUE((*parser)->AddFields({{"Delft", 1}, {"1", 1}, {"10", 1}}, &batch).ok());
  ASSERT_TRUE((*parser)->AddFields({{"Gouda", 1}, {"2.5", 1}, {"30", 1}}, &batch).ok());
  ASSERT_TRUE((*parser)->AddFields({{"", 1}, {"3", 1}, {"", 1}}, &batch).ok());
  ExpectSame(batch, ReadAll(*Load(config)->train));
}

TEST(SampleParserTest, WhatIsWrongIsNamedWithItsColumnAndLeavesTheBatchAsItWas) {
  const v1::Config config = Customers(WriteFile("customers.csv", kCustomers));
  const auto model = ModelOf(config);
  const Parser parser = SampleParser::OfLines(config.data(), model, "age,city,pay");
  Batch batch = OfLines(parser, {"10,Delft,1"});
  const absl::Status status = (*parser)->AddLine("10,Delft,much", &batch);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("byte 10: \"much\" in column \"pay\" is not a number"));
  EXPECT_FALSE((*parser)->AddLine("10,Delft", &batch).ok());
  EXPECT_FALSE((*parser)->AddLine("", &batch).ok());
  EXPECT_EQ(batch.size, 1u);
  EXPECT_EQ(batch.numeric.size(), 2u);
  EXPECT_EQ(batch.keys.size(), 1u);
  EXPECT_THAT(std::string(SampleParser::OfLines(config.data(), model, "age,city").status().message()),
              HasSubstr("the request: csv.numeric: there is no column \"pay\""));
  EXPECT_THAT(std::string(SampleParser::OfColumns(config.data(), model, {"age", "pay"}).status().message()),
              HasSubstr("there is no column \"city\""));
}

TEST(SampleParserTest, CsvWithoutHeaderAndLibsvmAndCriteoAreReadAsFilesAre) {
  v1::Config csv = FilesConfig(v1::DataConfig::CSV, {WriteFile("plain.csv", "1,10,x\n0,20,y\n")});
  csv.mutable_data()->mutable_csv()->set_header(v1::CsvConfig::NO);
  csv.mutable_data()->mutable_csv()->set_label("0");
  csv.mutable_data()->mutable_csv()->add_numeric("1");
  csv.mutable_data()->mutable_csv()->add_categorical("2");
  ExpectSame(OfLines(SampleParser::OfLines(csv.data(), ModelOf(csv), ",10,x"), {",10,x", ",20,y"}),
             ReadAll(*Load(csv)->train));
  v1::Config libsvm = FilesConfig(v1::DataConfig::LIBSVM, {WriteFile("a.libsvm", "1 3:0.5 8:1\n0 4:2\n")});
  libsvm.mutable_data()->set_numeric(v1::NONE);
  ExpectSame(OfLines(SampleParser::OfLines(libsvm.data(), ModelOf(libsvm), ""), {"3:0.5 8:1", "0 4:2"}),
             ReadAll(*Load(libsvm)->train));
  std::string features;
  for (int i = 0; i < 39; ++i) features += (i == 0 ? "" : "\t") + std::to_string(i);
  v1::Config criteo =
      FilesConfig(v1::DataConfig::CRITEO, {WriteFile("a.tsv", "1\t" + features + "\n0\t" + features + "\n")});
  ExpectSame(OfLines(SampleParser::OfLines(criteo.data(), ModelOf(criteo), ""), {features, "\t" + features}),
             ReadAll(*Load(criteo)->train));
}

TEST(SampleParserTest, AModelTakesOnlySamplesOfItsKindAndSaysWhich) {
  const v1::Config config = Customers(WriteFile("customers.csv", kCustomers));
  EXPECT_THAT(std::string(SampleParser::OfImages(config.data(), ModelOf(config)).status().message()),
              HasSubstr("trained on csv data and takes no images; give lines with a header, or columns by name"));
  const v1::Config libsvm = FilesConfig(v1::DataConfig::LIBSVM, {WriteFile("a.libsvm", "1 3:0.5\n0 4:2\n")});
  EXPECT_THAT(std::string(SampleParser::OfColumns(libsvm.data(), ModelOf(libsvm), {"3"}).status().message()),
              HasSubstr("takes no columns by name; give lines"));
}

std::string BigEndian(uint32_t x) {
  return {static_cast<char>(x >> 24), static_cast<char>(x >> 16), static_cast<char>(x >> 8), static_cast<char>(x)};
}

// `count` images of 2 x 3 pixels; pixel p of image i is 40 * i + p.
std::string Pixels(uint32_t image) {
  std::string bytes;
  for (uint32_t p = 0; p < 6; ++p) bytes.push_back(static_cast<char>(40 * image + p));
  return bytes;
}
std::string ImageFile(uint32_t count) {
  std::string bytes = BigEndian(0x803) + BigEndian(count) + BigEndian(2) + BigEndian(3);
  for (uint32_t i = 0; i < count; ++i) bytes += Pixels(i);
  return bytes;
}

class ImageModel : public testing::TestWithParam<v1::Transform> {
 protected:
  ImageModel() {
    images_ = WriteFile("known-images-idx3-ubyte", ImageFile(4));
    WriteFile("known-labels-idx1-ubyte", BigEndian(0x801) + BigEndian(4) + std::string("\3\7\3\7"));
    config_ = FilesConfig(v1::DataConfig::IDX, {images_});
    config_.mutable_data()->set_numeric(GetParam());
    model_ = ModelOf(config_);
  }
  std::string images_;
  v1::Config config_;
  std::shared_ptr<const v1::ModelDescription> model_;
};

TEST_P(ImageModel, ReadsImagesFromAStreamAndFromRequestsAsTheLoaderDoes) {
  const Batch expected = ReadAll(*Load(config_)->train);
  for (const bool labels : {true, false}) {
    const auto stream =
        SampleStream::Open(config_.data(), model_, {images_, images_}, {.labels = labels, .id_column = ""});
    ASSERT_TRUE(stream.ok()) << stream.status();
    Batch batch;
    std::vector<std::string> ids;
    ASSERT_TRUE((*stream)->Next(4, &batch, &ids).ok());
    ExpectSame(batch, expected);
    EXPECT_EQ(batch.labels, labels ? expected.labels : std::vector<float>(4, 0));
    ASSERT_TRUE((*stream)->Next(10, &batch, &ids).ok());
    EXPECT_EQ(batch.numeric, expected.numeric);
    EXPECT_EQ(ids, (std::vector<std::string>{"4", "5", "6", "7"}));
    ASSERT_TRUE((*stream)->Next(10, &batch, &ids).ok());
    EXPECT_EQ(batch.size, 0u);
  }
  const Parser parser = SampleParser::OfImages(config_.data(), model_);
  ASSERT_TRUE(parser.ok()) << parser.status();
  Batch batch;
  ClearBatch(&batch);
  for (uint32_t i = 0; i < 4; ++i) ASSERT_TRUE((*parser)->AddImage(Pixels(i), &batch).ok());
  ExpectSame(batch, expected);
  EXPECT_THAT(std::string((*parser)->AddImage("12345", &batch).message()),
              HasSubstr("5 bytes instead of the 6 pixels"));
}

INSTANTIATE_TEST_SUITE_P(OfEachTransform, ImageModel, testing::Values(v1::UNIT, v1::NONE, v1::STANDARDIZE),
                         [](const auto& info) { return v1::Transform_Name(info.param); });

TEST(SampleStreamTest, ImagesThatLackLabelsOrAreOfAnotherSizeOrCutShortAreRefused) {
  const std::string images = WriteFile("known-images-idx3-ubyte", ImageFile(4));
  WriteFile("known-labels-idx1-ubyte", BigEndian(0x801) + BigEndian(4) + std::string("\3\7\3\7"));
  v1::Config config = FilesConfig(v1::DataConfig::IDX, {images});
  config.mutable_data()->set_numeric(v1::UNIT);
  const auto model = ModelOf(config);
  const auto error_of = [&](const std::string& file, bool labels) {
    const auto stream = SampleStream::Open(config.data(), model, {file}, {.labels = labels, .id_column = ""});
    EXPECT_TRUE(stream.ok()) << stream.status();
    Batch batch;
    std::vector<std::string> ids;
    absl::Status status = (*stream)->Next(10, &batch, &ids);
    if (status.ok()) status = (*stream)->Next(10, &batch, &ids);
    return std::string(status.message());
  };
  EXPECT_THAT(error_of(WriteFile("alone-images-idx3-ubyte", ImageFile(2)), true), HasSubstr("labels-idx1"));
  const std::string other = BigEndian(0x803) + BigEndian(1) + BigEndian(1) + BigEndian(2) + "ab";
  EXPECT_THAT(error_of(WriteFile("other-images-idx3-ubyte", other), false), HasSubstr("trained on images of 6"));
  const std::string cut = ImageFile(2).substr(0, 16 + 9);
  EXPECT_THAT(error_of(WriteFile("cut-images-idx3-ubyte", cut), false), HasSubstr("ends within image 1 of 2"));
}

}  // namespace
}  // namespace lodestone::worker
