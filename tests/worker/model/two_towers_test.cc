// Two towers: their columns, in-batch softmax with its correction, gradients, and vectors.
#include "worker/model/two_towers.h"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/memory_dataset.h"
#include "tests/worker/model/model_instance.h"
#include "worker/model/candidates.h"
#include "worker/model/description_check.h"
#include "worker/model/model.h"
#include "worker/model/model_description.h"

namespace lodestone::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using v1::ModelConfig;

constexpr uint64_t kTowersSeed = 20261124;
constexpr size_t kTowersSamples = 6;

float TowersUniform(uint64_t n, float low, float high) {
  return low + (high - low) * static_cast<float>(RandomUniform(kTowersSeed, n));
}

// Fields user, item, city, genre and numbers age, price, so that the towers' columns lie in each other.
Schema TowersSchema(bool pooled) {
  Schema schema;
  schema.field_count = 4;
  schema.numeric_count = 2;
  v1::DataDescription& data = schema.description;
  data.set_format("csv");
  data.set_header(true);
  for (const char* name : {"user", "item", "city", "genre"}) data.add_categorical()->set_name(name);
  for (const char* name : {"age", "price"}) {
    data.add_numeric()->set_name(name);
    data.mutable_numeric(data.numeric_size() - 1)->set_transform("none");
    data.mutable_numeric(data.numeric_size() - 1)->set_deviation(1);
  }
  if (!pooled) return schema;
  schema.pooling.assign(4, v1::MultiColumn::MEAN);
  v1::DataDescription::CategoricalColumn& genre = *data.mutable_categorical(3);
  genre.set_pooling("mean");
  genre.set_separator("|");
  genre.set_values_max(5);
  return schema;
}

v1::Config TowersConfig() {
  v1::Config config;
  ModelConfig& model = *config.mutable_model();
  model.set_type(ModelConfig::TWOTOWER);
  model.set_embedding_dim(3);
  model.add_hidden(5);
  model.set_activation(ModelConfig::GELU);
  v1::TwoTowerConfig& towers = *model.mutable_two_tower();
  for (const char* name : {"user", "city", "age"}) towers.add_user(name);
  for (const char* name : {"item", "genre", "price"}) towers.add_item(name);
  towers.set_dim(4);
  towers.set_temperature(0.5f);
  return config;
}

// Samples of three users and four items, of which one comes three times; with rewards and weights.
Batch RawBatch(bool pooled) {
  constexpr Key kItems[kTowersSamples] = {1, 2, 1, 3, 4, 1};
  Batch batch;
  batch.size = kTowersSamples;
  batch.offsets = {0};
  for (uint64_t s = 0; s < kTowersSamples; ++s) {
    batch.labels.push_back(s == 4 ? 0.0f : static_cast<float>(1 + s % 2));
    batch.weights.push_back(0.5f + 0.25f * static_cast<float>(s));
    for (uint64_t i = 0; i < 2; ++i) batch.numeric.push_back(TowersUniform(100 + 2 * s + i, -1, 1));
    const std::vector<std::vector<Key>> fields = {
        {100 + s % 3}, {200 + kItems[s]}, {300 + s % 2}, {400 + kItems[s] % 2, 410 + kItems[s] % 3}};
    for (const std::vector<Key>& keys : fields) {
      const size_t count = pooled ? keys.size() : 1;
      for (size_t k = 0; k < count; ++k) {
        batch.keys.push_back(keys[k]);
        if (pooled) batch.values.push_back(1.0f / static_cast<float>(count));
      }
      if (pooled) batch.offsets.push_back(static_cast<uint32_t>(batch.keys.size()));
    }
    if (!pooled) batch.offsets.push_back(static_cast<uint32_t>(batch.keys.size()));
  }
  return batch;
}

KeyedBatch TowersKeyedBatch(bool pooled, const ItemShares* shares) {
  KeyedBatch keyed{.batch = RawBatch(pooled)};
  EXPECT_TRUE(FillCandidates(/*item_field=*/1, /*field_count=*/4, shares, &keyed.batch).ok());
  return keyed;
}

struct TowersInstance : ModelInstance {
  explicit TowersInstance(const v1::Config& config, bool pooled = false, const ItemShares* shares = nullptr)
      : ModelInstance(
            config, TowersSchema(pooled), TowersKeyedBatch(pooled, shares), kTowersSeed,
            [n = uint64_t{10'000}](const v1::TableSpec&, const std::vector<Key>&, std::vector<float>* values) mutable {
              for (float& x : *values) x = TowersUniform(n++, -0.8f, 0.8f);
            }) {}
};

ItemShares SomeShares() {
  ItemShares shares;
  for (const Key item : {201, 201, 201, 201, 202, 202, 203, 204}) shares.Count(item);
  return shares;
}

TEST(TwoTowers, GradientsEqualTheDifferenceQuotientsOfTheLoss) {
  const ItemShares shares = SomeShares();
  for (const bool normalizes : {false, true}) {
    for (const bool pooled : {false, true}) {
      for (const float dropout : {0.0f, 0.3f}) {
        SCOPED_TRACE(absl::StrCat("seed ", kTowersSeed, normalizes ? " normalised" : "", pooled ? " pooled" : "",
                                  " dropout ", dropout));
        v1::Config config = TowersConfig();
        if (dropout > 0) {  // And vectors of three widths.
          (*config.mutable_model()->mutable_embedding_dims())["user"] = 5;
          (*config.mutable_model()->mutable_embedding_dims())["genre"] = 2;
        }
        config.mutable_model()->set_dropout(dropout);
        config.mutable_model()->mutable_two_tower()->set_normalize(normalizes);
        TowersInstance setup(config, pooled, &shares);
        setup.Gradients();
        // As in model_test: the fourth-order quotient's truncation is below h^4 / 30 f^(5), of a softmax whose scores
        // are up to 2 a difference of h in a weight. A loss is a sum of fewer than 64 products of total magnitude
        // below 16.
        constexpr double h = 1.0 / 64;
        constexpr double kTolerance = 18 / (12 * h) * 64 * 16 * 0x1p-24 + 1e-5;
        for (size_t t = 1; t < setup.values.size(); ++t) {
          double largest = 0;
          for (size_t i = 0; i < setup.values[t].size(); ++i) {
            float& x = setup.values[t][i];
            const float before = x;
            const auto at = [&](double dx) {
              x = static_cast<float>(before + dx);
              const double value = setup.Objective();
              x = before;
              return value;
            };
            const double quotient = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
            ASSERT_NEAR(setup.gradients[t][i], quotient, kTolerance)
                << setup.model->tables()[t].name() << "[" << i << "]";
            largest = std::max(largest, std::abs(quotient));
          }
          EXPECT_GT(largest, 4 * kTolerance) << "too small to tell: " << setup.model->tables()[t].name();
        }
        EXPECT_THAT(setup.gradients[0], ElementsAre(0));  // The bias adds the same to all scores.
      }
    }
  }
}

TEST(TwoTowers, ThePredictionIsTheScoreOfASamplesOwnItem) {
  TowersInstance setup(TowersConfig());
  std::vector<float> predictions(kTowersSamples), alone(kTowersSamples);
  const double loss = setup.model->Predict(setup.batch, setup.parameters, predictions.data());
  const float* const scores = setup.model->logits();
  ASSERT_EQ(setup.model->OutputsOf(kTowersSamples), kTowersSamples);
  double want = 0;
  const std::vector<float>& labels = setup.batch.batch.labels;
  for (size_t i = 0; i < kTowersSamples; ++i) {
    const float own = scores[i * kTowersSamples + static_cast<size_t>(labels[i])];
    // Of samples with one item, the candidate is the first one's.
    if (labels[i] == static_cast<float>(i)) {
      EXPECT_NEAR(predictions[i], own, 1e-5);
    }
    double sum = 0;
    for (const size_t candidate : {0, 1, 3, 4})
      sum += std::exp(static_cast<double>(scores[i * kTowersSamples + candidate]));
    want += setup.batch.batch.weights[i] * (std::log(sum) - own);
  }
  EXPECT_NEAR(loss, want, 1e-4);
  // Without candidates there is no loss, and nothing of the batch but each sample itself matters.
  setup.batch.batch.candidates.clear();
  EXPECT_EQ(setup.model->Predict(setup.batch, setup.parameters, alone.data()), 0);
  EXPECT_EQ(alone, predictions);
}

TEST(TwoTowers, VectorsMakeTheScores) {
  for (const bool normalizes : {false, true}) {
    v1::Config config = TowersConfig();
    config.mutable_model()->mutable_two_tower()->set_normalize(normalizes);
    TowersInstance setup(config);
    std::vector<float> predictions(kTowersSamples);
    setup.model->Predict(setup.batch, setup.parameters, predictions.data());
    const float *user = setup.model->towers()->user(), *item = setup.model->towers()->item();
    for (size_t i = 0; i < kTowersSamples; ++i) {
      double product = 0, square = 0, sum = 0;
      for (size_t d = 0; d < 4; ++d) {
        product += user[4 * i + d] * item[4 * i + d];
        square += item[4 * i + d] * item[4 * i + d];
        sum += item[4 * i + d];
      }
      EXPECT_NEAR(predictions[i], product / (normalizes ? 4 * 0.5 : 0.5), 1e-5);
      if (!normalizes) continue;
      EXPECT_NEAR(sum, 0, 1e-5);
      EXPECT_NEAR(square / 4, 1, 1e-2);  // But for the 1e-5 beside its variance.
    }
  }
}

TEST(TwoTowers, AUsersColumnsDoNotChangeAnItemsVector) {
  TowersInstance a(TowersConfig()), b(TowersConfig());
  for (size_t s = 0; s < kTowersSamples; ++s) b.batch.batch.numeric[2 * s] += 1;  // age
  std::vector<float> predictions(kTowersSamples);
  a.model->Predict(a.batch, a.parameters, predictions.data());
  b.model->Predict(b.batch, b.parameters, predictions.data());
  bool users_differ = false;
  for (size_t i = 0; i < 4 * kTowersSamples; ++i) {
    EXPECT_EQ(a.model->towers()->item()[i], b.model->towers()->item()[i]);
    users_differ = users_differ || a.model->towers()->user()[i] != b.model->towers()->user()[i];
  }
  EXPECT_TRUE(users_differ);
}

TEST(Candidates, AnItemIsACandidateOnceInThePlaceOfItsFirstSample) {
  Batch batch = RawBatch(false);
  ASSERT_TRUE(FillCandidates(1, 4, nullptr, &batch).ok());
  EXPECT_THAT(batch.labels, ElementsAre(0, 1, 0, 3, 4, 0));
  EXPECT_THAT(batch.weights, ElementsAre(0.5f, 2 * 0.75f, 1, 2 * 1.25f, 0, 2 * 1.75f));  // Times the rewards.
  EXPECT_THAT(batch.candidates, ElementsAre(0, 0, -1e30f, 0, 0, -1e30f, 0, 0, -1e30f, 0, 0, -1e30f));
}

TEST(Candidates, TheItemOfPooledFieldsIsFoundByItsField) {
  Batch batch = RawBatch(true);
  ASSERT_TRUE(FillCandidates(1, 4, nullptr, &batch).ok());
  EXPECT_THAT(batch.labels, ElementsAre(0, 1, 0, 3, 4, 0));
}

TEST(Candidates, ScoresAreCorrectedByTheChanceThatABatchHasTheItem) {
  const ItemShares shares = SomeShares();
  Batch batch = RawBatch(false);
  ASSERT_TRUE(FillCandidates(1, 4, &shares, &batch).ok());
  const auto chance = [](double share) { return 1 - std::pow(1 - share, static_cast<double>(kTowersSamples)); };
  EXPECT_NEAR(batch.candidates[0], -std::log(chance(4.0 / 8)), 1e-6);
  EXPECT_NEAR(batch.candidates[1], -std::log(chance(2.0 / 8)), 1e-6);
  EXPECT_NEAR(batch.candidates[3], -std::log(chance(1.0 / 8)), 1e-6);
  EXPECT_EQ(batch.candidates[kTowersSamples], 0);  // Predictions have none.
  EXPECT_EQ(shares.LogChance(999, kTowersSamples), shares.LogChance(203, kTowersSamples));
}

TEST(Candidates, ARewardIsNotNegative) {
  for (const float bad : {-1.0f, std::nanf(""), HUGE_VALF}) {
    Batch batch = RawBatch(false);
    batch.labels[3] = bad;
    EXPECT_THAT(std::string(FillCandidates(1, 4, nullptr, &batch).message()), HasSubstr("is no reward"));
  }
}

// Regression: the sample of the training data has samples of other workers' partitions, and was not looked through.
TEST(Candidates, RewardsOfAllDataAreLookedAt) {
  v1::Config config = TowersConfig();
  const auto set = [](float reward) {
    return std::make_unique<MemoryDataset>(std::vector<MemoryDataset::Sample>{{reward, {100, 201, 300, 400}, {0, 0}}});
  };
  for (const char* bad : {"none", "train", "sample", "test"}) {
    LoadedData data;
    data.schema = TowersSchema(false);
    const auto reward = [&](absl::string_view name) { return bad == name ? -1.0f : 1.0f; };
    data.train = set(reward("train"));
    data.train_sample = set(reward("sample"));
    data.test = set(reward("test"));
    EXPECT_EQ(absl::StrContains(AddCandidates(config, &data).message(), "the label -1 is no reward"),
              bad != absl::string_view("none"))
        << bad;
  }
}

// Regression: generated data sets set no weights, so that those of the batch before stayed, and rewards multiplied up.
TEST(Candidates, ABatchThatIsReadAgainHasTheRewardsOfItsOwnSamples) {
  v1::Config config;
  config.mutable_model()->set_type(ModelConfig::TWOTOWER);
  config.mutable_model()->mutable_two_tower()->add_user("field 0");
  config.mutable_model()->mutable_two_tower()->add_item("field 1");
  v1::GeneratedConfig& generated = *config.mutable_data()->mutable_generated();
  generated.set_kind(v1::GeneratedConfig::CLICKS);
  generated.set_categorical_fields(2);
  generated.set_numeric_fields(0);
  generated.set_train_samples(100);
  auto data = LoadData(config, LabelsOf(config.model()), Partition(), false, nullptr);
  ASSERT_TRUE(data.ok()) << data.status();
  const absl::Status added = AddCandidates(config, &*data);
  ASSERT_TRUE(added.ok()) << added;
  const std::vector<uint64_t> few = {0, 1, 2}, more = {3, 4, 5, 6, 7};
  Batch again, once;
  data->train->Read(few, &again);
  data->train->Read(more, &again);
  data->train->Read(more, &once);
  EXPECT_EQ(again.weights, once.weights);
  EXPECT_EQ(again.weights.size(), more.size());
}

std::string TowersErrorOf(const v1::Config& config, const Schema& schema = TowersSchema(false)) {
  return std::string(Model::Create(config, schema).status().message());
}

TEST(TwoTowers, EachColumnIsOfOneTower) {
  const auto with = [](const auto& change) {
    v1::Config config = TowersConfig();
    change(config.mutable_model()->mutable_two_tower());
    return TowersErrorOf(config);
  };
  EXPECT_THAT(with([](v1::TwoTowerConfig* t) { t->mutable_user()->RemoveLast(); }),
              HasSubstr("column \"age\" is in neither .user nor .item"));
  EXPECT_THAT(with([](v1::TwoTowerConfig* t) { t->add_user("price"); }), HasSubstr("column \"price\" is named twice"));
  EXPECT_THAT(with([](v1::TwoTowerConfig* t) { t->add_user("height"); }),
              HasSubstr("model.two_tower.user: the data has no feature of a column \"height\""));
  EXPECT_THAT(with([](v1::TwoTowerConfig* t) { t->clear_user(); }), HasSubstr("name the user's columns"));
  EXPECT_THAT(with([](v1::TwoTowerConfig* t) { t->mutable_item()->SwapElements(0, 2); }),
              HasSubstr("the first column, \"price\", names the item, and has to be categorical"));
  EXPECT_THAT(with([](v1::TwoTowerConfig* t) { t->set_dim(1); }), HasSubstr("model.two_tower.dim"));
  v1::Config config = TowersConfig();
  config.mutable_model()->mutable_two_tower()->mutable_item()->SwapElements(0, 1);
  EXPECT_THAT(TowersErrorOf(config, TowersSchema(true)),
              HasSubstr("\"genre\", names the item, and cannot have several values"));
}

TEST(TwoTowers, OtherSettingsAndDataAreRefused) {
  v1::Config config = TowersConfig();
  config.mutable_model()->set_loss(ModelConfig::SQUARED);
  EXPECT_THAT(TowersErrorOf(config), HasSubstr("leave model.loss out"));
  config = TowersConfig();
  config.mutable_train()->set_batch_size(10'000);
  EXPECT_THAT(TowersErrorOf(config), HasSubstr("train.batch_size: 10000"));
  config = TowersConfig();
  config.mutable_data()->set_standardize_label(true);
  EXPECT_THAT(TowersErrorOf(config), HasSubstr("rewards"));
  Schema sparse;
  sparse.sparse = true;
  EXPECT_THAT(TowersErrorOf(TowersConfig(), sparse), HasSubstr("model.type: twotower takes categorical fields"));
  v1::Config linear;
  linear.mutable_model()->set_loss(ModelConfig::IN_BATCH_SOFTMAX);
  EXPECT_THAT(TowersErrorOf(linear), HasSubstr("which is twotower's loss"));
}

TEST(TwoTowers, ADescriptionMakesTheSameModelAgain) {
  const auto model = Model::Create(TowersConfig(), TowersSchema(true));
  ASSERT_TRUE(model.ok()) << model.status();
  const auto description = std::make_shared<const v1::ModelDescription>((*model)->tables()[0].model());
  ASSERT_TRUE(CheckDescription(*description).ok()) << CheckDescription(*description);
  EXPECT_EQ(description->format(), 5u);
  EXPECT_EQ(description->loss(), "in_batch_softmax");
  const auto again = Model::Create(worker::ConfigOf(*description), worker::SchemaOf(description));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->tables()[0].model().SerializeAsString(), description->SerializeAsString());
  ASSERT_EQ((*again)->tables().size(), (*model)->tables().size());
  for (size_t t = 0; t < (*model)->tables().size(); ++t) {
    EXPECT_EQ((*again)->tables()[t].name(), (*model)->tables()[t].name());
  }
  v1::Config other = TowersConfig();
  other.mutable_model()->mutable_two_tower()->set_temperature(1);
  EXPECT_THAT(std::string(Model::Create(other, worker::SchemaOf(description)).status().message()),
              HasSubstr("model.two_tower.temperature"));
  v1::ModelDescription damaged = *description;
  damaged.mutable_two_tower()->set_temperature(0);
  EXPECT_FALSE(CheckDescription(damaged).ok());
  damaged = *description;
  damaged.mutable_two_tower()->set_item(0, "gone");
  EXPECT_THAT(std::string(CheckDescription(damaged).message()), HasSubstr("no feature of a column \"gone\""));
}

}  // namespace
}  // namespace lodestone::worker
