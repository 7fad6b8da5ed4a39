// Samples with several labels: csv.labels.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/worker/data/test_files.h"
#include "worker/data/data_survey.h"
#include "worker/data/sample_parser.h"
#include "worker/data/sample_stream.h"

namespace lodestone::worker {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kLabelsRows[] = "x,click,w,conversion\n1,1,2,\n2,0,0.5,0\n3,,1,1\n4,1,3,1.0\n";

v1::Config LabelsConfig(const std::string& rows, const std::vector<std::string>& test = {}) {
  v1::Config config = FilesConfig(v1::DataConfig::CSV, {WriteFile("labels.csv", rows)}, test);
  config.mutable_data()->mutable_csv()->add_labels("click");
  config.mutable_data()->mutable_csv()->add_labels("conversion");
  config.mutable_data()->mutable_csv()->add_numeric("x");
  return config;
}

absl::StatusOr<LoadedData> LoadLabels(const v1::Config& config, Partition partition = {}) {
  return Load(config, LabelKind::kSeveral, partition);
}

std::string LabelsErrorOf(const v1::Config& config, LabelKind kind = LabelKind::kSeveral) {
  return std::string(Load(config, kind).status().message());
}

TEST(SeveralLabels, AreReadLabelByLabelWithAWeightOfZeroWhereOneIsMissing) {
  const auto data = LoadLabels(LabelsConfig(kLabelsRows));
  ASSERT_TRUE(data.ok()) << data.status();
  const Batch batch = ReadAll(*data->train);
  EXPECT_EQ(batch.size, 4u);
  EXPECT_THAT(batch.labels, ElementsAre(1, 0, 0, 1, 0, 0, 1, 1));
  EXPECT_THAT(batch.label_weights, ElementsAre(1, 1, 0, 1, 0, 1, 1, 1));
  EXPECT_THAT(batch.numeric, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(batch.weights, IsEmpty());
  Batch some;
  data->train->Read(std::vector<uint64_t>{3, 0}, &some);
  EXPECT_THAT(some.labels, ElementsAre(1, 1, 1, 0));
  EXPECT_THAT(some.label_weights, ElementsAre(1, 1, 1, 0));
}

TEST(SeveralLabels, CountWhatTheirSampleCounts) {
  v1::Config config = LabelsConfig(kLabelsRows);
  config.mutable_data()->mutable_csv()->set_weight("w");
  const auto data = LoadLabels(config);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(ReadAll(*data->train).label_weights, ElementsAre(2, 0.5f, 0, 3, 0, 0.5f, 1, 3));
  ASSERT_EQ(data->schema.labels.size(), 2u);
  EXPECT_EQ(data->schema.labels[0].weight, 5.5);
  EXPECT_EQ(data->schema.labels[0].positive_weight, 5);
}

TEST(SeveralLabels, AreDescribedWithTheirCounts) {
  const auto data = LoadLabels(LabelsConfig(kLabelsRows));
  ASSERT_TRUE(data.ok()) << data.status();
  const v1::DataDescription& description = data->schema.description;
  EXPECT_EQ(description.label(), "");
  EXPECT_EQ(description.samples(), 4u);
  ASSERT_EQ(description.labels_size(), 2);
  EXPECT_EQ(description.labels(1).name(), "conversion");
  EXPECT_EQ(description.labels(1).samples(), 3u);
  EXPECT_EQ(description.labels(1).positives(), 2u);
  EXPECT_EQ(data->schema.train_samples, 4u);
}

TEST(SeveralLabels, AreNoFeaturesWhereNoColumnIsNamedAsOne) {
  v1::Config config = LabelsConfig(kLabelsRows);
  config.mutable_data()->mutable_csv()->clear_numeric();
  const auto data = LoadLabels(config);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->schema.numeric_count, 2u) << "x and w";
}

TEST(SeveralLabels, AreTheSameWhereverTheSamplesAreKept) {
  std::string rows = "x,click,conversion\n";
  for (int i = 0; i < 5000; ++i) {
    absl::StrAppend(&rows, i, ",",
                    i % 3 == 0   ? ""
                    : i % 2 == 0 ? "1"
                                 : "0",
                    ",",
                    i % 5 == 0   ? ""
                    : i % 7 == 0 ? "1"
                                 : "0",
                    "\n");
  }
  v1::Config config = LabelsConfig(rows);
  const auto in_memory = LoadLabels(config);
  config.mutable_data()->set_spill_dir(TestPath("spill"));
  config.mutable_data()->set_memory_max_bytes(40'000);
  config.mutable_train()->set_evaluate_train_samples_max(100);
  const auto on_disk = LoadLabels(config), part = LoadLabels(config, {0, 2});
  ASSERT_TRUE(in_memory.ok() && on_disk.ok() && part.ok()) << on_disk.status() << part.status();
  EXPECT_GT(on_disk->spilled_bytes, 0u);
  EXPECT_EQ(ReadAll(*on_disk->train).labels, ReadAll(*in_memory->train).labels);
  EXPECT_EQ(ReadAll(*on_disk->train).label_weights, ReadAll(*in_memory->train).label_weights);
  // Each so many-th of all samples: halved several times.
  const Batch sample = ReadAll(*part->train_sample);
  ASSERT_GT(sample.size, 10u);
  for (size_t i = 0; i < sample.size; ++i) {
    const int number = static_cast<int>(sample.numeric[i]);
    EXPECT_EQ(sample.label_weights[i], number % 3 == 0 ? 0 : 1);
    EXPECT_EQ(sample.labels[sample.size + i], number % 5 != 0 && number % 7 == 0 ? 1 : 0);
  }
}

TEST(SeveralLabels, OfParquetAreThoseOfTheSameRowsInCsv) {
  const auto load = [](const std::string& file) {
    v1::Config config =
        FilesConfig(v1::DataConfig::AUTO, {absl::StrCat(std::getenv("TEST_SRCDIR"), "/", std::getenv("TEST_WORKSPACE"),
                                                        "/tests/worker/data/parquet/", file)});
    v1::CsvConfig& csv = *config.mutable_data()->mutable_csv();
    csv.add_labels("ok");
    csv.add_labels("label");
    csv.add_numeric("price");
    config.mutable_data()->set_bad_lines_max(300);
    return LoadLabels(config);
  };
  const auto text = load("rows.csv"), parquet = load("arrow_zstd_v2.parquet");
  ASSERT_EQ(text.ok(), parquet.ok()) << text.status() << parquet.status();
  if (!text.ok()) GTEST_SKIP() << text.status();
  EXPECT_EQ(ReadAll(*text->train).labels, ReadAll(*parquet->train).labels);
  EXPECT_EQ(ReadAll(*text->train).label_weights, ReadAll(*parquet->train).label_weights);
}

TEST(SeveralLabels, ThatAreNoneAreErrorsThatNameLineAndColumn) {
  for (const char* bad : {"2", "-1", "0.5", "yes"}) {
    EXPECT_THAT(LabelsErrorOf(LabelsConfig(absl::StrCat("x,click,conversion\n1,1,0\n1,", bad, ",1\n"))),
                AllOf(HasSubstr("labels.csv:3:3"), HasSubstr("in column \"click\" is no label: csv.labels takes 0, 1")))
        << bad;
  }
  EXPECT_THAT(LabelsErrorOf(LabelsConfig("x,click,conversion\n1,1,\n2,0,\n")),
              HasSubstr("the label conversion is missing in all training samples"));
  EXPECT_THAT(LabelsErrorOf(LabelsConfig("x,click,conversion\n1,1,0\n2,0,\n")),
              HasSubstr("the label conversion is 0 in all training samples that have it"));
}

TEST(SeveralLabels, OfFilesOrModelsThatHaveOneAreRefused) {
  v1::Config config = LabelsConfig(kLabelsRows);
  EXPECT_THAT(LabelsErrorOf(config, LabelKind::kClass),
              HasSubstr("data.csv.labels names several labels, and the model takes one"));
  config.mutable_data()->mutable_csv()->set_labels(1, "nothing");
  EXPECT_THAT(LabelsErrorOf(config), HasSubstr("csv.labels: there is no column \"nothing\""));
  config.mutable_data()->mutable_csv()->clear_labels();
  EXPECT_THAT(LabelsErrorOf(config), HasSubstr("name their columns in data.csv.labels"));
  config.mutable_data()->mutable_csv()->add_labels("click");
  EXPECT_THAT(LabelsErrorOf(config), HasSubstr("csv.labels names one column: take csv.label"));
  config = LabelsConfig(kLabelsRows);
  config.mutable_data()->mutable_csv()->set_weight("conversion");
  EXPECT_THAT(LabelsErrorOf(config), HasSubstr("csv.weight: column \"conversion\" is the label"));
  config = LabelsConfig(kLabelsRows);
  (*config.mutable_data()->mutable_label_map())["yes"] = 1;
  EXPECT_THAT(LabelsErrorOf(config), HasSubstr("data.label_map is for one label"));
  v1::Config sparse = FilesConfig(v1::DataConfig::LIBSVM, {WriteFile("labels.libsvm", "1 1:1\n0 2:1\n")});
  *sparse.mutable_data()->mutable_csv()->mutable_labels() = config.data().csv().labels();
  EXPECT_THAT(LabelsErrorOf(sparse), HasSubstr("csv.labels: samples of libsvm files have one label"));
  v1::Config generated;
  generated.mutable_data()->mutable_generated();
  *generated.mutable_data()->mutable_csv()->mutable_labels() = config.data().csv().labels();
  EXPECT_THAT(LabelsErrorOf(generated), HasSubstr("generated samples have one label"));
}

std::shared_ptr<const v1::ModelDescription> LabelsModel() {
  const auto data = LoadLabels(LabelsConfig(kLabelsRows));
  EXPECT_TRUE(data.ok()) << data.status();
  auto model = std::make_shared<v1::ModelDescription>();
  model->set_type("multitask");
  model->set_loss("logistic");
  *model->mutable_data() = data->schema.description;
  return model;
}

TEST(SeveralLabels, OfAModelThatIsTrainedOnAreTheSame) {
  const auto load = [](const v1::Config& config) {
    return std::string(
        LoadData(config, LabelKind::kSeveral, {}, /*with_test=*/false, nullptr, LabelsModel()).status().message());
  };
  EXPECT_EQ(load(LabelsConfig("conversion,x,click\n1,2,1\n,3,1\n")), "") << "one value is enough now";
  v1::Config config = LabelsConfig(kLabelsRows);
  config.mutable_data()->mutable_csv()->mutable_labels()->SwapElements(0, 1);
  EXPECT_THAT(load(config), HasSubstr("trained on the labels [click, conversion], and the configuration says "
                                      "[conversion, click]; set csv.labels as it was"));
}

TEST(SeveralLabels, AreReadWhereTheyAreWantedAndMayBeMissingElsewhere) {
  const auto model = LabelsModel();
  const v1::DataConfig config = LabelsConfig(kLabelsRows).data();
  const auto open = [&](const std::string& rows, bool labels) {
    return SampleStream::Open(config, model, {WriteFile("stream.csv", rows)}, {.labels = labels, .id_column = ""});
  };
  Batch batch;
  std::vector<std::string> ids;
  auto stream = open("conversion,x,click\n1,2,0\n,3,1\n", /*labels=*/true);
  ASSERT_TRUE(stream.ok()) << stream.status();
  ASSERT_TRUE((*stream)->Next(10, &batch, &ids).ok());
  EXPECT_THAT(batch.labels, ElementsAre(0, 1, 1, 0));
  EXPECT_THAT(batch.label_weights, ElementsAre(1, 1, 1, 0));
  ASSERT_TRUE((*stream)->Next(10, &batch, &ids).ok());
  EXPECT_EQ(batch.size, 0u);
  stream = open("x\n2\n", /*labels=*/false);
  ASSERT_TRUE(stream.ok()) << stream.status();
  ASSERT_TRUE((*stream)->Next(10, &batch, &ids).ok());
  EXPECT_EQ(batch.size, 1u);
  EXPECT_THAT(batch.label_weights, IsEmpty());
  EXPECT_THAT(std::string(open("x,click\n2,1\n", /*labels=*/true).status().message()),
              HasSubstr("csv.labels: there is no column \"conversion\""));
  auto parser = SampleParser::OfColumns(config, model, {"x"});
  ASSERT_TRUE(parser.ok()) << parser.status();
}

TEST(SeveralLabels, AreSurveyed) {
  const auto survey = SurveyData(LabelsConfig(kLabelsRows).data(), LabelKind::kSeveral, 100);
  ASSERT_TRUE(survey.ok()) << survey.status();
  ASSERT_EQ(survey->schema.labels.size(), 2u);
  EXPECT_EQ(survey->schema.labels[0].samples, 3u);
  EXPECT_EQ(survey->schema.labels[0].positives, 2u);
}

}  // namespace
}  // namespace lodestone::worker
