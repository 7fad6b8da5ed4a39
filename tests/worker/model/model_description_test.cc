#include "worker/model/model_description.h"

#include <cmath>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/model/description_check.h"
#include "worker/model/model.h"

namespace lodestone::worker {
namespace {

using testing::HasSubstr;
using v1::ModelConfig;

// Of three classes, two numbers and, where the type takes them, three fields.
Schema ThreeClasses(ModelConfig::Type type) {
  Schema schema;
  v1::DataDescription& data = schema.description;
  data.set_format("csv");
  data.set_header(true);
  for (const char* const name : {"x", "y"}) {
    auto* const column = data.add_numeric();
    column->set_name(name);
    column->set_transform("standardize");
    column->set_mean(3);
    column->set_deviation(2);
  }
  schema.numeric_count = 2;
  if (type != ModelConfig::MLP) {
    schema.field_count = 3;
    for (const char* const name : {"a", "b", "c"}) data.add_categorical()->set_name(name);
  }
  for (const char* const name : {"ash", "beech", "cedar"}) {
    auto* const one = data.add_classes();
    one->set_name(name);
    one->add_labels(name);
    one->set_samples(7);
    schema.class_names.push_back(name);
    schema.class_counts.push_back(schema.class_names.size() * 10);
  }
  return schema;
}

v1::Config ConfigOfType(ModelConfig::Type type) {
  v1::Config config;
  config.mutable_model()->set_type(type);
  config.mutable_model()->set_embedding_dim(4);
  config.mutable_model()->add_hidden(6);
  config.mutable_model()->add_bottom_hidden(5);
  config.mutable_model()->set_activation(ModelConfig::GELU);
  return config;
}

// Regression: predictions of a model of Parquet data took every column for a numeric feature.
TEST(ModelDescription, OfColumnsNamesThemWhateverTheFormat) {
  for (const char* const format : {"csv", "parquet"}) {
    v1::ModelDescription description;
    v1::DataDescription& data = *description.mutable_data();
    data.set_format(format);
    data.set_header(true);
    data.set_label("kind");
    data.add_numeric()->set_name("age");
    data.mutable_numeric(0)->set_transform("standardize");
    data.add_categorical()->set_name("city");
    const v1::CsvConfig csv = ConfigOf(description).data().csv();
    EXPECT_EQ(csv.label(), "kind") << format;
    ASSERT_EQ(csv.numeric_size(), 1) << format;
    EXPECT_EQ(csv.numeric(0), "age");
    EXPECT_EQ(csv.transform().at("age"), v1::STANDARDIZE);
    ASSERT_EQ(csv.categorical_size(), 1);
    EXPECT_EQ(csv.categorical(0), "city");
  }
}

class ModelDescriptionTest : public ::testing::TestWithParam<ModelConfig::Type> {};

TEST_P(ModelDescriptionTest, MakesTheSameModelAgain) {
  const auto model = Model::Create(ConfigOfType(GetParam()), ThreeClasses(GetParam()));
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_TRUE((*model)->tables()[0].has_model());
  EXPECT_EQ((*model)->tables()[0].name(), kDescribedTable);
  const auto description = std::make_shared<const v1::ModelDescription>((*model)->tables()[0].model());
  ASSERT_TRUE(CheckDescription(*description).ok());
  EXPECT_EQ(description->outputs(), 3u);
  EXPECT_EQ(description->prior_size(), 3);
  EXPECT_EQ(description->tables_size(), static_cast<int>((*model)->tables().size()));
  const auto again = Model::Create(ConfigOf(*description), SchemaOf(description));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->plan().prior, (*model)->plan().prior);
  ASSERT_EQ((*again)->tables().size(), (*model)->tables().size());
  for (size_t t = 0; t < (*model)->tables().size(); ++t) {
    const v1::TableSpec& one = (*model)->tables()[t];
    const v1::TableSpec& other = (*again)->tables()[t];
    EXPECT_EQ(other.name(), one.name());
    EXPECT_EQ(other.dense().SerializeAsString(), one.dense().SerializeAsString());
    EXPECT_EQ(other.embedding().dim(), one.embedding().dim());
  }
  EXPECT_EQ((*again)->tables()[0].model().SerializeAsString(), description->SerializeAsString());
}

INSTANTIATE_TEST_SUITE_P(Types, ModelDescriptionTest,
                         ::testing::Values(ModelConfig::LINEAR, ModelConfig::MLP, ModelConfig::DLRM,
                                           ModelConfig::WIDEDEEP, ModelConfig::DCN));

// Two classes, two numbers and three fields.
Schema TwoClasses() {
  Schema schema = ThreeClasses(ModelConfig::FM);
  schema.class_names.pop_back();
  schema.class_counts.pop_back();
  schema.description.mutable_classes()->RemoveLast();
  return schema;
}

TEST(ModelDescription, TimesAndScaledLabelsAreSettingsAgain) {
  v1::ModelDescription description;
  description.set_format(5);
  description.set_type("linear");
  description.set_loss("squared");
  description.set_activation("relu");
  description.set_outputs(1);
  v1::DataDescription& data = *description.mutable_data();
  data.set_format("csv");
  data.set_header(true);
  data.set_label("price");
  data.set_label_mean(10);
  data.set_label_deviation(2);
  auto& age = *data.add_numeric();
  age.set_name("built");
  age.set_transform("log");
  age.set_deviation(1);
  age.mutable_time()->set_part("age_days");
  age.mutable_time()->set_format("iso8601");
  age.mutable_time()->set_age_at(1709251200);
  auto& hour = *data.add_categorical();
  hour.set_name("seen");
  hour.mutable_time()->set_part("hour");
  hour.mutable_time()->set_format("auto");
  ASSERT_TRUE(CheckDescription(description).ok()) << CheckDescription(description);
  for (const double no_time : {std::nan(""), 1e300}) {
    data.mutable_numeric(0)->mutable_time()->set_age_at(no_time);
    EXPECT_THAT(std::string(CheckDescription(description).message()), HasSubstr("the time of column \"built\""));
  }
  data.mutable_numeric(0)->mutable_time()->set_age_at(1709251200);
  const v1::DataConfig config = ConfigOf(description).data();
  EXPECT_TRUE(config.standardize_label());
  ASSERT_EQ(config.csv().datetime_size(), 2);
  const v1::DateTimeColumn& built = config.csv().datetime().at("built");
  EXPECT_EQ(built.age_at(), "2024-03-01T00:00:00Z");
  EXPECT_EQ(built.age_days(), v1::DateTimeColumn::NUMBER);
  EXPECT_EQ(built.hour(), v1::DateTimeColumn::NONE);
  EXPECT_EQ(built.format(), v1::DateTimeColumn::ISO8601);
  EXPECT_EQ(built.transform(), v1::LOG);
  const v1::DateTimeColumn& seen = config.csv().datetime().at("seen");
  EXPECT_EQ(seen.hour(), v1::DateTimeColumn::CATEGORY);
  EXPECT_EQ(seen.weekday(), v1::DateTimeColumn::NONE);
  EXPECT_EQ(config.csv().numeric_size() + config.csv().categorical_size(), 0);
  const auto known = std::make_shared<const v1::ModelDescription>(description);
  const auto model = Model::Create(ConfigOf(description), SchemaOf(known));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->plan().label_deviation, 2);
  v1::Config other = ConfigOf(description);
  other.mutable_data()->set_standardize_label(false);
  EXPECT_THAT(std::string(Model::Create(other, SchemaOf(known)).status().message()),
              HasSubstr("data.standardize_label: true"));
  hour.mutable_time()->set_part("minute");
  EXPECT_THAT(std::string(CheckDescription(description).message()), HasSubstr("the time of column \"seen\""));
}

TEST(ModelDescription, AModelThatIsTrainedOnKeepsItsPairs) {
  v1::Config config = ConfigOfType(ModelConfig::FM);
  config.mutable_model()->mutable_linear();
  config.mutable_model()->set_numeric_pairs(true);
  const auto with = Model::Create(config, TwoClasses());
  ASSERT_TRUE(with.ok()) << with.status();
  EXPECT_EQ((*with)->tables()[0].model().format(), 2u);
  EXPECT_TRUE((*with)->plan().numeric_pairs);
  config.mutable_model()->set_numeric_pairs(false);
  const auto without = Model::Create(config, TwoClasses());
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ((*without)->tables()[0].model().format(), 1u);
  for (const Model* const kept : {with->get(), without->get()}) {
    const auto description = std::make_shared<const v1::ModelDescription>(kept->tables()[0].model());
    ASSERT_TRUE(CheckDescription(*description).ok());
    const auto again = Model::Create(ConfigOf(*description), SchemaOf(description));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ((*again)->tables().size(), kept->tables().size());
    config.mutable_model()->clear_numeric_pairs();
    const auto trained_on = Model::Create(config, SchemaOf(description));
    ASSERT_TRUE(trained_on.ok()) << trained_on.status();
    EXPECT_EQ((*trained_on)->plan().numeric_pairs, kept->plan().numeric_pairs);
    config.mutable_model()->set_numeric_pairs(!kept->plan().numeric_pairs);
    const auto other = Model::Create(config, SchemaOf(description));
    EXPECT_TRUE(absl::IsFailedPrecondition(other.status()));
    EXPECT_THAT(std::string(other.status().message()), HasSubstr("leave model.numeric_pairs away"));
  }
}

TEST(ModelDescription, SaysWhereLinearWeightsLie) {
  v1::Config config = ConfigOfType(ModelConfig::FM);
  for (const uint32_t columns : {1u, 0u}) {
    const auto model = Model::Create(config, TwoClasses());
    ASSERT_TRUE(model.ok()) << model.status();
    const auto description = std::make_shared<const v1::ModelDescription>((*model)->tables()[0].model());
    EXPECT_EQ(description->linear_columns(), columns);
    EXPECT_EQ(description->format(), columns > 0 ? 7u : 1u);
    EXPECT_EQ(description->embedding_dim(), 4u);
    const auto again = Model::Create(ConfigOf(*description), SchemaOf(description));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ((*again)->plan().linear_columns, columns);
    EXPECT_EQ((*again)->tables().size(), (*model)->tables().size());
    config.mutable_model()->mutable_linear();
  }
}

// Regression: a layer was added in training, and the description, by which psctl predicts, did not have it.
TEST(ModelDescription, OtherLayersCannotGoOnAndAreToldWhatToSet) {
  const auto refused = [](ModelConfig::Type type, auto change_before, auto change, const std::string& what) {
    v1::Config config = ConfigOfType(type);
    change_before(config.mutable_model());
    const auto model = Model::Create(config, ThreeClasses(type));
    ASSERT_TRUE(model.ok()) << model.status();
    const auto description = std::make_shared<const v1::ModelDescription>((*model)->tables()[0].model());
    EXPECT_TRUE(Model::Create(config, SchemaOf(description)).ok());
    change(config.mutable_model());
    const auto other = Model::Create(config, SchemaOf(description));
    EXPECT_TRUE(absl::IsFailedPrecondition(other.status())) << other.status();
    EXPECT_THAT(std::string(other.status().message()), HasSubstr(what));
  };
  const auto as_it_is = [](ModelConfig*) {};
  const auto one_more = [](ModelConfig* model) { model->add_hidden(3); };
  refused(
      ModelConfig::DCN, as_it_is, [](ModelConfig* model) { model->mutable_cross()->set_rank(2); },
      "set model.cross.rank: 0");
  refused(
      ModelConfig::DCN, [](ModelConfig* model) { model->mutable_cross()->set_rank(2); },
      [](ModelConfig* model) { model->mutable_cross()->set_rank(0); }, "set model.cross.rank: 2");
  for (const auto type : {ModelConfig::MLP, ModelConfig::WIDEDEEP, ModelConfig::DCN, ModelConfig::DLRM}) {
    refused(type, as_it_is, one_more, "set model.hidden: [");
    if (type == ModelConfig::MLP) continue;  // It has numbers only here.
    refused(
        type, as_it_is, [](ModelConfig* model) { model->set_embedding_dim(16); }, "set model.embedding_dim: 4");
  }
  refused(
      ModelConfig::DLRM, as_it_is, [](ModelConfig* model) { model->add_bottom_hidden(4); },
      "set model.bottom_hidden: [");
}

TEST(ModelDescription, SaysTheWidthsOfFieldsAndKeepsThem) {
  v1::Config config = ConfigOfType(ModelConfig::DCN);
  (*config.mutable_model()->mutable_embedding_dims())["b"] = 7;
  const auto model = Model::Create(config, ThreeClasses(ModelConfig::DCN));
  ASSERT_TRUE(model.ok()) << model.status();
  const auto description = std::make_shared<const v1::ModelDescription>((*model)->tables()[0].model());
  EXPECT_THAT(description->field_dims(), testing::ElementsAre(4, 7, 4));
  EXPECT_EQ(description->format(), kModelFormat);
  ASSERT_TRUE(CheckDescription(*description).ok()) << CheckDescription(*description);
  const auto again = Model::Create(ConfigOf(*description), SchemaOf(description));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->tables()[0].model().SerializeAsString(), description->SerializeAsString());
  EXPECT_EQ((*again)->plan().groups.fields, (*model)->plan().groups.fields);
  const auto message = [&] {
    const auto other = Model::Create(config, SchemaOf(description));
    EXPECT_TRUE(absl::IsFailedPrecondition(other.status())) << other.status();
    return std::string(other.status().message());
  };
  (*config.mutable_model()->mutable_embedding_dims())["c"] = 4;
  EXPECT_TRUE(Model::Create(config, SchemaOf(description)).ok()) << "which it has anyhow";
  (*config.mutable_model()->mutable_embedding_dims())["b"] = 6;
  EXPECT_THAT(message(), HasSubstr("set model.embedding_dims: {b: 7}"));
  config.mutable_model()->clear_embedding_dims();
  EXPECT_THAT(message(), HasSubstr("model.embedding_dims: {b: 7}, and the configuration says {}"));
  v1::ModelDescription damaged = *description;
  damaged.mutable_field_dims()->RemoveLast();
  EXPECT_THAT(std::string(CheckDescription(damaged).message()), HasSubstr("widths of the vectors of 3 fields: 4, 7"));
}

TEST(ModelDescription, TablesThatMeanSomethingElseAreNotGoneOnWith) {
  v1::Config config = ConfigOfType(ModelConfig::DCN);
  const auto model = Model::Create(config, ThreeClasses(ModelConfig::DCN));
  ASSERT_TRUE(model.ok()) << model.status();
  const auto description = std::make_shared<const v1::ModelDescription>((*model)->tables()[0].model());
  const auto message = [&](const v1::Config& other) {
    const auto again = Model::Create(other, SchemaOf(description));
    EXPECT_TRUE(absl::IsFailedPrecondition(again.status())) << again.status();
    return std::string(again.status().message());
  };
  v1::Config other = config;
  other.mutable_model()->mutable_cross()->set_layers(2);
  EXPECT_THAT(message(other), HasSubstr("set model.cross.layers: 3"));
  other = config;
  other.mutable_model()->mutable_cross()->set_structure(v1::CrossConfig::PARALLEL);
  EXPECT_THAT(message(other), HasSubstr("set model.cross.structure: stacked"));
  other = config;
  other.mutable_model()->set_activation(ModelConfig::RELU);
  EXPECT_THAT(message(other), HasSubstr("set model.activation: gelu"));
  other = config;
  other.mutable_model()->set_layer_norm(true);
  EXPECT_THAT(message(other), HasSubstr("set model.layer_norm: false"));
}

TEST(ModelDescription, SaysThatHiddenLayersAreNormalised) {
  v1::Config config = ConfigOfType(ModelConfig::MLP);
  config.mutable_model()->set_layer_norm(true);
  const auto model = Model::Create(config, ThreeClasses(ModelConfig::MLP));
  ASSERT_TRUE(model.ok()) << model.status();
  const v1::ModelDescription& description = (*model)->tables()[0].model();
  EXPECT_EQ(description.format(), 2u);
  EXPECT_TRUE(ConfigOf(description).model().layer_norm());
}

TEST(ModelDescription, OfANewerFormatOrWithNonsenseIsRefused) {
  v1::ModelDescription description;
  description.set_format(kModelFormat + 1);
  description.set_program("9.9");
  EXPECT_THAT(std::string(CheckDescription(description).message()), HasSubstr("format 9, written by version 9.9"));
  description.set_format(kModelFormat);
  description.set_type("oracle");
  EXPECT_THAT(std::string(CheckDescription(description).message()), HasSubstr("there is no type oracle"));
  description.set_type("linear");
  description.set_loss("auto");
  EXPECT_THAT(std::string(CheckDescription(description).message()), HasSubstr("there is no loss auto"));
  description.set_loss("logistic");
  description.set_activation("relu");
  EXPECT_TRUE(CheckDescription(description).ok());
  description.set_outputs(1);
  description.set_linear_columns(1);
  EXPECT_THAT(std::string(CheckDescription(description).message()), HasSubstr("1 linear weights of 1 outputs"));
  description.set_embedding_dim(4);
  EXPECT_TRUE(CheckDescription(description).ok());
  description.set_linear_columns(2);
  EXPECT_THAT(std::string(CheckDescription(description).message()), HasSubstr("2 linear weights of 1 outputs"));
  description.set_linear_columns(0);
  v1::DataDescription::CategoricalColumn* const city = description.mutable_data()->add_categorical();
  city->set_name("age");
  city->set_bucket("tens");
  EXPECT_THAT(std::string(CheckDescription(description).message()), HasSubstr("the bucket of column \"age\""));
  city->set_bucket("log2");
  EXPECT_TRUE(CheckDescription(description).ok());
  auto* const column = description.mutable_data()->add_numeric();
  column->set_name("age");
  column->set_transform("standardize");
  EXPECT_THAT(std::string(CheckDescription(description).message()), HasSubstr("column \"age\""));
}

TEST(ModelDescription, AnotherTypeOrLossCannotGoOnAndIsToldWhatToSet) {
  v1::ModelDescription known;
  known.set_type("deepfm");
  known.set_loss("logistic");
  EXPECT_TRUE(CheckContinues(known, ModelConfig::DEEPFM, ModelConfig::LOGISTIC).ok());
  const absl::Status type = CheckContinues(known, ModelConfig::FM, ModelConfig::LOGISTIC);
  EXPECT_TRUE(absl::IsFailedPrecondition(type));
  EXPECT_THAT(std::string(type.message()), HasSubstr("set model.type: deepfm to go on"));
  EXPECT_THAT(std::string(CheckContinues(known, ModelConfig::DEEPFM, ModelConfig::SQUARED).message()),
              HasSubstr("model.loss: logistic"));
}

}  // namespace
}  // namespace lodestone::worker
