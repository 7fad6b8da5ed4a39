#include "worker/model/model_plan.h"

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/model/model_tables.h"

namespace lodestone::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using v1::ModelConfig;

Schema MakeSchema(uint32_t numeric, uint32_t fields, bool sparse, uint32_t classes) {
  Schema schema;
  schema.numeric_count = numeric;
  schema.field_count = fields;
  schema.sparse = sparse;
  for (uint32_t c = 0; c < classes; ++c) {
    schema.class_names.push_back(absl::StrCat(c));
    schema.class_counts.push_back(10);
  }
  return schema;
}

v1::Config MakeConfig(ModelConfig::Type type) {
  v1::Config config;
  config.mutable_model()->set_type(type);
  config.mutable_model()->set_embedding_dim(4);
  config.mutable_model()->add_hidden(6);
  config.mutable_cluster()->set_workers(3);
  return config;
}

// "name[dims]" of dense tables, "name{dim}" of embedding tables.
std::vector<std::string> Shapes(const v1::Config& config, const Schema& schema) {
  auto plan = PlanModel(config, schema);
  EXPECT_TRUE(plan.ok()) << plan.status();
  auto tables = TablesOf(*plan, config);
  EXPECT_TRUE(tables.ok()) << tables.status();
  std::vector<std::string> shapes;
  for (const v1::TableSpec& table : *tables) {
    shapes.push_back(table.has_dense() ? absl::StrCat(table.name(), "[", absl::StrJoin(table.dense().dims(), ","), "]")
                                       : absl::StrCat(table.name(), "{", table.embedding().dim(), "}"));
  }
  return shapes;
}

std::map<std::string, v1::TableSpec> Tables(const v1::Config& config, const Schema& schema) {
  std::map<std::string, v1::TableSpec> by_name;
  auto tables = TablesOf(*PlanModel(config, schema), config);
  for (const v1::TableSpec& table : *tables) by_name[table.name()] = table;
  return by_name;
}

TEST(ModelPlan, GivesEachTypeTheTablesOfItsTerms) {
  EXPECT_THAT(Shapes(MakeConfig(ModelConfig::LINEAR), MakeSchema(0, 0, true, 2)), ElementsAre("bias[1]", "linear{1}"));
  EXPECT_THAT(Shapes(MakeConfig(ModelConfig::LINEAR), MakeSchema(5, 2, false, 4)),
              ElementsAre("bias[4]", "numeric[5,4]", "linear{4}"));
  EXPECT_THAT(Shapes(MakeConfig(ModelConfig::FM), MakeSchema(5, 2, false, 2)),
              ElementsAre("bias[1]", "numeric[5,1]", "embedding{5}"));
  EXPECT_THAT(Shapes(MakeConfig(ModelConfig::MF), MakeSchema(0, 2, false, 0)), ElementsAre("bias[1]", "embedding{5}"));
  EXPECT_THAT(Shapes(MakeConfig(ModelConfig::DEEPFM), MakeSchema(5, 2, false, 2)),
              ElementsAre("bias[1]", "numeric[5,1]", "mlp/0/weight[13,6]", "mlp/0/bias[6]", "mlp/1/weight[6,1]",
                          "embedding{5}"));
  v1::Config pairs = MakeConfig(ModelConfig::FM);
  pairs.mutable_model()->set_numeric_pairs(true);
  EXPECT_THAT(Shapes(pairs, MakeSchema(5, 2, false, 2)),
              ElementsAre("bias[1]", "numeric[5,1]", "numeric_embedding[5,4]", "embedding{5}"));
  EXPECT_THAT(Shapes(pairs, MakeSchema(0, 2, false, 2)), ElementsAre("bias[1]", "embedding{5}"));
  EXPECT_THAT(Shapes(MakeConfig(ModelConfig::MLP), MakeSchema(5, 0, false, 3)),
              ElementsAre("bias[3]", "mlp/0/weight[5,6]", "mlp/0/bias[6]", "mlp/1/weight[6,3]"));
  EXPECT_THAT(Shapes(MakeConfig(ModelConfig::MLP), MakeSchema(5, 2, false, 3)),
              ElementsAre("bias[3]", "mlp/0/weight[13,6]", "mlp/0/bias[6]", "mlp/1/weight[6,3]", "embedding{4}"));
  EXPECT_THAT(Shapes(MakeConfig(ModelConfig::WIDEDEEP), MakeSchema(5, 2, false, 3)),
              ElementsAre("bias[3]", "numeric[5,3]", "mlp/0/weight[13,6]", "mlp/0/bias[6]", "mlp/1/weight[6,3]",
                          "embedding{7}"));
  v1::Config dcn = MakeConfig(ModelConfig::DCN);
  dcn.mutable_model()->mutable_cross()->set_layers(1);
  EXPECT_THAT(Shapes(dcn, MakeSchema(5, 2, false, 2)),
              ElementsAre("bias[1]", "cross/0/weight[13,13]", "cross/0/bias[13]", "mlp/0/weight[13,6]", "mlp/0/bias[6]",
                          "mlp/1/weight[6,1]", "embedding{4}"));
  dcn.mutable_model()->mutable_cross()->set_rank(2);
  dcn.mutable_model()->mutable_cross()->set_structure(v1::CrossConfig::PARALLEL);
  EXPECT_THAT(Shapes(dcn, MakeSchema(5, 0, false, 2)),
              ElementsAre("bias[1]", "cross/0/down[5,2]", "cross/0/up[2,5]", "cross/0/bias[5]", "cross/out/weight[5,1]",
                          "mlp/0/weight[5,6]", "mlp/0/bias[6]", "mlp/1/weight[6,1]"));
  v1::Config dlrm = MakeConfig(ModelConfig::DLRM);
  dlrm.mutable_model()->add_bottom_hidden(7);
  EXPECT_THAT(Shapes(dlrm, MakeSchema(5, 3, false, 2)),
              ElementsAre("bias[1]", "mlp/0/weight[10,6]", "mlp/0/bias[6]", "mlp/1/weight[6,1]", "bottom/0/weight[5,7]",
                          "bottom/0/bias[7]", "bottom/1/weight[7,4]", "bottom/1/bias[4]", "embedding{4}"));
}

TEST(ModelPlan, ChoosesTheLossFromTheLabels) {
  const auto loss = [](ModelConfig::Type type, const Schema& schema) {
    return PlanModel(MakeConfig(type), schema)->loss;
  };
  EXPECT_EQ(loss(ModelConfig::LINEAR, MakeSchema(1, 0, false, 2)), ModelConfig::LOGISTIC);
  EXPECT_EQ(loss(ModelConfig::LINEAR, MakeSchema(1, 0, false, 3)), ModelConfig::SOFTMAX);
  EXPECT_EQ(loss(ModelConfig::MF, MakeSchema(0, 2, false, 0)), ModelConfig::SQUARED);

  v1::Config config = MakeConfig(ModelConfig::MF);
  EXPECT_EQ(LabelsOf(config.model()), LabelKind::kNumber);
  config.mutable_model()->set_loss(ModelConfig::LOGISTIC);
  EXPECT_EQ(LabelsOf(config.model()), LabelKind::kClass);
  config = MakeConfig(ModelConfig::LINEAR);
  EXPECT_EQ(LabelsOf(config.model()), LabelKind::kClass);
  config.mutable_model()->set_loss(ModelConfig::SQUARED);
  EXPECT_EQ(LabelsOf(config.model()), LabelKind::kNumber);
  config.mutable_model()->set_loss(ModelConfig::SOFTMAX);
  EXPECT_EQ(PlanModel(config, MakeSchema(1, 0, false, 2))->outputs, 2u);
}

TEST(ModelPlan, SaysWhatToChangeWhereModelAndDataDoNotFit) {
  const struct {
    ModelConfig::Type type;
    ModelConfig::Loss loss;
    Schema schema;
    const char* message;
  } kCases[] = {
      {ModelConfig::MLP, ModelConfig::AUTO, MakeSchema(0, 0, true, 2), "use linear or fm"},
      {ModelConfig::WIDEDEEP, ModelConfig::AUTO, MakeSchema(0, 0, true, 2), "use linear or fm"},
      {ModelConfig::DCN, ModelConfig::AUTO, MakeSchema(0, 0, true, 2), "use linear or fm"},
      {ModelConfig::DEEPFM, ModelConfig::AUTO, MakeSchema(3, 0, false, 2), "needs categorical fields"},
      {ModelConfig::DEEPFM, ModelConfig::AUTO, MakeSchema(0, 0, true, 2), "use fm"},
      {ModelConfig::DLRM, ModelConfig::AUTO, MakeSchema(0, 4, false, 2), "use deepfm"},
      {ModelConfig::DLRM, ModelConfig::AUTO, MakeSchema(4, 0, false, 2), "use mlp"},
      {ModelConfig::DLRM, ModelConfig::AUTO, MakeSchema(0, 0, true, 2), "libsvm"},
      {ModelConfig::MF, ModelConfig::AUTO, MakeSchema(0, 3, false, 0), "exactly two categorical fields"},
      {ModelConfig::MF, ModelConfig::AUTO, MakeSchema(1, 2, false, 0), "exactly two categorical fields"},
      {ModelConfig::MF, ModelConfig::AUTO, MakeSchema(0, 0, true, 0), "libsvm"},
      {ModelConfig::FM, ModelConfig::AUTO, MakeSchema(3, 0, false, 2), "use linear or mlp"},
      {ModelConfig::FM, ModelConfig::AUTO, MakeSchema(0, 3, false, 5), "cannot tell 5 classes apart"},
      {ModelConfig::DEEPFM, ModelConfig::AUTO, MakeSchema(0, 3, false, 5), "cannot tell 5 classes apart"},
      {ModelConfig::LINEAR, ModelConfig::LOGISTIC, MakeSchema(1, 0, false, 3), "takes two classes"},
      {ModelConfig::LINEAR, ModelConfig::AUTO, MakeSchema(1, 0, false, 1), "all the same"},
      {ModelConfig::LINEAR, ModelConfig::AUTO, MakeSchema(0, 0, false, 2), "no features"},
  };
  for (const auto& c : kCases) {
    v1::Config config = MakeConfig(c.type);
    config.mutable_model()->set_loss(c.loss);
    const auto plan = PlanModel(config, c.schema);
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument) << c.message;
    EXPECT_THAT(std::string(plan.status().message()), HasSubstr(c.message));
  }
}

// Regression: it trained as if l2 were 0.
TEST(ModelPlan, RefusesL2OfAModelWithoutRows) {
  v1::Config config = MakeConfig(ModelConfig::MLP);
  config.mutable_model()->set_l2(1e-4f);
  const auto plan = PlanModel(config, MakeSchema(3, 0, false, 2));
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr("weight_decay of model.dense.optimizer"));
  EXPECT_TRUE(PlanModel(config, MakeSchema(3, 1, false, 2)).ok());
}

TEST(ModelPlan, RefusesARankThatSavesNothing) {
  v1::Config config = MakeConfig(ModelConfig::DCN);
  config.mutable_model()->mutable_cross()->set_rank(7);
  const auto plan = PlanModel(config, MakeSchema(3, 1, false, 2));
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr("model.cross.rank: 7"));
  EXPECT_TRUE(PlanModel(config, MakeSchema(4, 1, false, 2)).ok());
}

TEST(ModelPlan, RefusesAdmissionAndEvictionOfDenseTables) {
  v1::Config config = MakeConfig(ModelConfig::LINEAR);
  config.mutable_model()->mutable_dense()->mutable_eviction()->set_rows_max(5);
  const auto tables = TablesOf(*PlanModel(config, MakeSchema(1, 0, false, 2)), config);
  EXPECT_EQ(tables.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ModelPlan, StartsTheBiasAtTheLabels) {
  v1::Config config = MakeConfig(ModelConfig::LINEAR);
  Schema schema = MakeSchema(1, 0, false, 2);
  schema.class_counts = {29, 9};
  EXPECT_FLOAT_EQ(Tables(config, schema)["bias"].initializer().constant().value(),
                  static_cast<float>(std::log(9.5 / 29.5)));
  schema.class_counts = {30, 0};  // A class without samples: finite.
  EXPECT_FLOAT_EQ(Tables(config, schema)["bias"].initializer().constant().value(),
                  static_cast<float>(std::log(0.5 / 30.5)));

  schema = MakeSchema(1, 0, false, 3);
  schema.class_counts = {4, 0, 6};
  const ModelPlan softmax = *PlanModel(config, schema);
  EXPECT_THAT(softmax.prior,
              ElementsAre(testing::FloatEq(std::log(4.5f / 11.5f)), testing::FloatEq(std::log(0.5f / 11.5f)),
                          testing::FloatEq(std::log(6.5f / 11.5f))));
  EXPECT_EQ(Tables(config, schema)["bias"].initializer().constant().value(), 0);

  config.mutable_model()->set_loss(ModelConfig::SQUARED);
  schema = MakeSchema(1, 0, false, 0);
  schema.label_mean = 3.5;
  EXPECT_FLOAT_EQ(Tables(config, schema)["bias"].initializer().constant().value(), 3.5f);
  config.mutable_train()->set_bias_from_labels(false);
  EXPECT_TRUE(Tables(config, schema)["bias"].initializer().has_zeros());
}

TEST(ModelPlan, TakesOptimizersByGroupThenByModelThenAdagrad) {
  v1::Config config = MakeConfig(ModelConfig::DEEPFM);
  const Schema schema = MakeSchema(2, 2, false, 2);
  auto tables = Tables(config, schema);
  for (const auto& [name, table] : tables) {
    EXPECT_TRUE(table.optimizer().has_adagrad()) << name;
    EXPECT_FLOAT_EQ(table.optimizer().learning_rate(), 0.05f) << name;
  }
  config.mutable_model()->mutable_optimizer()->mutable_adam();
  config.mutable_model()->mutable_linear()->mutable_optimizer()->mutable_ftrl();
  config.mutable_model()->mutable_embedding()->mutable_optimizer()->mutable_momentum();
  tables = Tables(config, schema);
  EXPECT_TRUE(tables["linear"].optimizer().has_ftrl());
  EXPECT_TRUE(tables["embedding"].optimizer().has_momentum());
  EXPECT_TRUE(tables["bias"].optimizer().has_adam());
  config.mutable_model()->mutable_dense()->mutable_optimizer()->mutable_rmsprop();
  tables = Tables(config, schema);
  EXPECT_TRUE(tables["mlp/0/weight"].optimizer().has_rmsprop());
  EXPECT_TRUE(tables["numeric"].optimizer().has_rmsprop());
}

TEST(ModelPlan, DividesTheLearningRatesOfAllTablesByWhatScaleRateMakesOfTheWorkers) {
  v1::Config config = MakeConfig(ModelConfig::FM);
  config.mutable_cluster()->set_workers(4);
  config.mutable_model()->mutable_linear()->mutable_optimizer()->set_learning_rate(0.5);
  const Schema schema = MakeSchema(2, 2, false, 2);
  for (const auto& [scale, factor] :
       {std::pair{v1::TrainConfig::NONE, 1.0f}, {v1::TrainConfig::SQRT, 2.0f}, {v1::TrainConfig::LINEAR, 4.0f}}) {
    config.mutable_train()->set_scale_rate(scale);
    auto tables = Tables(config, schema);
    EXPECT_FLOAT_EQ(tables["linear"].optimizer().learning_rate(), 0.5f / factor);
    EXPECT_FLOAT_EQ(tables["embedding"].optimizer().learning_rate(), 0.05f / factor);
    EXPECT_FLOAT_EQ(tables["bias"].optimizer().learning_rate(), 0.05f / factor);
  }
}

TEST(ModelPlan, DividesRatesByTheDelayWhereTheConsistencySaysSo) {
  v1::Config config = MakeConfig(ModelConfig::FM);
  const Schema schema = MakeSchema(2, 2, false, 2);
  v1::Consistency::Async& async = *config.mutable_train()->mutable_consistency()->mutable_async();
  EXPECT_FALSE(Tables(config, schema).at("bias").has_consistency()) << "as where nothing is said";
  async.set_rate(v1::Consistency::Async::BY_DELAY);
  config.mutable_model()->mutable_embedding()->mutable_consistency()->mutable_async();
  auto tables = Tables(config, schema);
  EXPECT_EQ(tables.at("bias").consistency().async().rate(), v1::Consistency::Async::BY_DELAY);
  EXPECT_FALSE(tables.at("embedding").has_consistency());
}

TEST(ModelPlan, CarriesEveryFieldOfATableGroupIntoItsTables) {
  v1::Config config = MakeConfig(ModelConfig::DEEPFM);
  const Schema schema = MakeSchema(2, 2, false, 2);
  v1::TableConfig* embedding = config.mutable_model()->mutable_embedding();
  embedding->mutable_initializer()->mutable_uniform()->set_high(0.5);
  embedding->mutable_admission()->set_count_min(3);
  embedding->mutable_eviction()->set_rows_max(99);
  embedding->set_memory_max_bytes(1000);
  v1::TableConfig* dense = config.mutable_model()->mutable_dense();
  dense->mutable_broadcast()->set_every_ms(7);
  dense->mutable_initializer()->mutable_constant()->set_value(0.25);
  dense->set_memory_max_bytes(2000);
  auto tables = Tables(config, schema);
  EXPECT_FLOAT_EQ(tables["embedding"].initializer().uniform().high(), 0.5f);
  EXPECT_EQ(tables["embedding"].embedding().admission().count_min(), 3u);
  EXPECT_EQ(tables["embedding"].embedding().eviction().rows_max(), 99u);
  EXPECT_EQ(tables["embedding"].memory_max_bytes(), 1000u);
  EXPECT_EQ(tables["embedding"].initializer().zero_columns(), 1u);
  EXPECT_FLOAT_EQ(tables["mlp/0/weight"].initializer().constant().value(), 0.25f);
  EXPECT_EQ(tables["mlp/0/weight"].broadcast().every_ms(), 7u);
  EXPECT_EQ(tables["mlp/0/weight"].broadcast().every_pushes(), 0u);
  EXPECT_EQ(tables["numeric"].memory_max_bytes(), 2000u);
}

TEST(ModelPlan, LinearWeightsAreColumnsOfEmbeddingWhereNothingIsSaidOfThem) {
  const Schema schema = MakeSchema(0, 2, false, 2);
  v1::Config config = MakeConfig(ModelConfig::WIDEDEEP);
  const ModelPlan joined = *PlanModel(config, schema);
  EXPECT_EQ(joined.linear_columns, 1u);
  EXPECT_EQ(joined.LinearColumns().first, 0u);
  EXPECT_EQ(joined.EmbeddingColumns().first, 1u);
  EXPECT_EQ(joined.EmbeddingColumns().row_width, 5u);
  EXPECT_EQ(joined.LinearColumns().table, joined.EmbeddingColumns().table);
  EXPECT_EQ(Tables(config, schema)["embedding"].initializer().zero_columns(), 1u);

  const auto apart = [&](const v1::Config& of) {
    auto tables = Tables(of, schema);
    EXPECT_EQ(tables["linear"].embedding().dim(), 1u);
    EXPECT_EQ(tables["embedding"].embedding().dim(), 4u);
    EXPECT_EQ(tables["embedding"].initializer().zero_columns(), 0u);
    const ModelPlan plan = *PlanModel(of, schema);
    EXPECT_NE(plan.LinearColumns().table, plan.EmbeddingColumns().table);
    EXPECT_EQ(plan.EmbeddingColumns().first, 0u);
  };
  v1::Config said = config;
  said.mutable_model()->mutable_linear();
  apart(said);
  v1::Config rowwise = config;
  rowwise.mutable_model()->mutable_optimizer()->mutable_rowwise_adagrad();
  apart(rowwise);
  v1::Config clipped = config;
  clipped.mutable_model()->mutable_embedding()->mutable_optimizer()->mutable_clip()->set_row_norm(1);
  apart(clipped);
  // The embeddings' own optimizer is what counts.
  rowwise.mutable_model()->mutable_embedding()->mutable_optimizer()->mutable_sgd();
  EXPECT_EQ(PlanModel(rowwise, schema)->linear_columns, 1u);
}

TEST(ModelPlan, AModelThatIsTrainedOnKeepsItsLinearWeightsWhereTheyAre) {
  Schema schema = MakeSchema(0, 2, false, 2);
  v1::Config config = MakeConfig(ModelConfig::FM);
  v1::ModelDescription known;
  known.set_type("fm");
  known.set_loss("logistic");
  known.set_outputs(1);
  known.set_embedding_dim(4);
  schema.continued = std::make_shared<v1::ModelDescription>(known);
  EXPECT_EQ(PlanModel(config, schema)->linear_columns, 0u);
  known.set_linear_columns(1);
  schema.continued = std::make_shared<v1::ModelDescription>(known);
  EXPECT_EQ(PlanModel(config, schema)->linear_columns, 1u);
  config.mutable_model()->mutable_embedding()->mutable_optimizer()->mutable_clip()->set_row_norm(1);
  EXPECT_EQ(PlanModel(config, schema)->linear_columns, 1u);
  config.mutable_model()->mutable_linear();
  const auto refused = PlanModel(config, schema);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.status().message(), HasSubstr("leave model.linear away"));
}

TEST(ModelPlan, FieldsOfOneWidthShareATable) {
  Schema schema = MakeSchema(1, 4, false, 2);
  for (const char* name : {"user", "item", "weekday", "city"}) {
    schema.description.add_categorical()->set_name(name);
  }
  v1::Config config = MakeConfig(ModelConfig::WIDEDEEP);
  auto& dims = *config.mutable_model()->mutable_embedding_dims();
  dims["user"] = 16;
  dims["weekday"] = 2;
  dims["city"] = 2;
  EXPECT_THAT(Shapes(config, schema),
              ElementsAre("bias[1]", "numeric[1,1]", "mlp/0/weight[25,6]", "mlp/0/bias[6]", "mlp/1/weight[6,1]",
                          "embedding{5}", "embedding/2{3}", "embedding/16{17}"));
  const ModelPlan plan = *PlanModel(config, schema);
  EXPECT_THAT(plan.groups.fields, ElementsAre(ElementsAre(1), ElementsAre(2, 3), ElementsAre(0)));
  EXPECT_THAT(plan.groups.of_table, ElementsAre(0, 1, 2));
  EXPECT_EQ(Tables(config, schema)["embedding/16"].initializer().zero_columns(), 1u);
  config.mutable_model()->mutable_linear();
  EXPECT_THAT(Shapes(config, schema), ElementsAre("bias[1]", "numeric[1,1]", "mlp/0/weight[25,6]", "mlp/0/bias[6]",
                                                  "mlp/1/weight[6,1]", "linear{1}", "linear/2{1}", "linear/16{1}",
                                                  "embedding{4}", "embedding/2{2}", "embedding/16{16}"));
  // Without a field of the default width there is no table of it.
  config.mutable_model()->set_type(ModelConfig::MLP);
  dims["item"] = 16;
  EXPECT_THAT(Shapes(config, schema), ElementsAre("bias[1]", "mlp/0/weight[37,6]", "mlp/0/bias[6]", "mlp/1/weight[6,1]",
                                                  "embedding/2{2}", "embedding/16{16}"));
  const auto message = [&](const v1::Config& of, const Schema& data) {
    const auto refused = PlanModel(of, data);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(refused.status().message());
  };
  config.mutable_model()->set_type(ModelConfig::DEEPFM);
  EXPECT_THAT(message(config, schema), HasSubstr("leave model.embedding_dims out, or use mlp, widedeep or dcn"));
  config.mutable_model()->set_type(ModelConfig::MLP);
  EXPECT_THAT(message(config, MakeSchema(3, 0, false, 2)), HasSubstr("the data has none"));
  schema.description.mutable_categorical(3)->set_vocabulary_of("user");
  EXPECT_THAT(message(config, schema), HasSubstr("city has the categories of user (csv.vocabulary_of)"));
  dims["city"] = 16;
  EXPECT_TRUE(PlanModel(config, schema).ok());
  dims["town"] = 3;
  EXPECT_THAT(message(config, schema),
              HasSubstr("there is no categorical column \"town\"; the data has user, item, weekday, city"));
}

TEST(ModelPlan, InitializesHiddenLayersByHeAndTheLastByXavier) {
  auto tables = Tables(MakeConfig(ModelConfig::MLP), MakeSchema(5, 0, false, 3));
  EXPECT_TRUE(tables["mlp/0/weight"].initializer().has_he());
  EXPECT_TRUE(tables["mlp/0/bias"].initializer().has_zeros());
  EXPECT_TRUE(tables["mlp/1/weight"].initializer().has_xavier());
}

TEST(ModelPlan, BroadcastsAfterAboutOneStepOfEveryWorker) {
  auto tables = Tables(MakeConfig(ModelConfig::MLP), MakeSchema(5, 0, false, 3));
  EXPECT_EQ(tables["bias"].broadcast().every_pushes(), 3u);
  EXPECT_EQ(tables["bias"].broadcast().every_ms(), 100u);
}

}  // namespace
}  // namespace lodestone::worker
