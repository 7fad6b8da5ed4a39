// Several labels: the networks that they share, their losses and gradients, and what is said of settings that do not
// fit.
#include "worker/model/multitask.h"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/model/model_instance.h"
#include "worker/model/description_check.h"
#include "worker/model/model.h"
#include "worker/model/model_description.h"

namespace lodestone::worker {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::FloatNear;
using testing::HasSubstr;
using v1::ModelConfig;
using v1::MultitaskConfig;

constexpr uint64_t kLabelsSeed = 20261126;
constexpr size_t kLabelsSamples = 7, kLabelsCount = 3;

float LabelsUniform(uint64_t n, float low, float high) {
  return low + (high - low) * static_cast<float>(RandomUniform(kLabelsSeed, n));
}

Schema LabelsSchema(bool fields = true) {
  Schema schema;
  schema.field_count = fields ? 2 : 0;
  schema.numeric_count = 2;
  v1::DataDescription& data = schema.description;
  data.set_format("csv");
  for (uint32_t f = 0; f < schema.field_count; ++f) data.add_categorical()->set_name(absl::StrCat("f", f));
  for (const char* name : {"age", "price"}) {
    v1::DataDescription::NumericColumn& column = *data.add_numeric();
    column.set_name(name);
    column.set_transform("none");
    column.set_deviation(1);
  }
  for (const char* name : {"click", "cart", "conversion"}) {
    schema.labels.push_back({name, 100, 20, 100, 20});
    v1::DataDescription::Label& label = *data.add_labels();
    label.set_name(name);
    label.set_samples(100);
    label.set_positives(20);
  }
  return schema;
}

v1::Config LabelsConfig(MultitaskConfig::Structure structure) {
  v1::Config config;
  ModelConfig& model = *config.mutable_model();
  model.set_type(ModelConfig::MULTITASK);
  model.set_embedding_dim(3);
  model.add_hidden(5);
  model.add_hidden(4);
  model.set_activation(ModelConfig::GELU);
  model.mutable_multitask()->set_structure(structure);
  model.mutable_multitask()->set_experts(3);
  model.mutable_multitask()->add_tower_hidden(3);
  (*model.mutable_multitask()->mutable_loss_weights())["cart"] = 0.5f;
  return config;
}

// Sample 2 has no conversion, sample 3 no label at all but the first.
Batch LabelsBatch(bool fields = true) {
  Batch batch;
  batch.size = kLabelsSamples;
  batch.offsets = {0};
  for (uint64_t s = 0; s < kLabelsSamples; ++s) {
    for (uint64_t i = 0; i < 2; ++i) batch.numeric.push_back(LabelsUniform(100 + 2 * s + i, -1, 1));
    if (fields) batch.keys.insert(batch.keys.end(), {100 + s % 3, 200 + s % 2});
    batch.offsets.push_back(static_cast<uint32_t>(batch.keys.size()));
    batch.weights.push_back(0.5f + 0.25f * static_cast<float>(s));
  }
  for (size_t k = 0; k < kLabelsCount; ++k) {
    for (size_t s = 0; s < kLabelsSamples; ++s) {
      const bool is_missing = (k == 2 && s == 2) || (k > 0 && s == 3);
      batch.labels.push_back(is_missing ? 0.0f : static_cast<float>(RandomBits(kLabelsSeed, 10 * k + s) % 2));
      batch.label_weights.push_back(is_missing ? 0.0f : batch.weights[s]);
    }
  }
  return batch;
}

KeyedBatch LabelsKeyedBatch(bool fields) { return {.batch = LabelsBatch(fields)}; }

struct LabelsInstance : ModelInstance {
  explicit LabelsInstance(const v1::Config& config, bool fields = true)
      : ModelInstance(
            config, LabelsSchema(fields), LabelsKeyedBatch(fields), kLabelsSeed,
            [n = uint64_t{10'000}](const v1::TableSpec&, const std::vector<Key>&, std::vector<float>* values) mutable {
              for (float& x : *values) x = LabelsUniform(n++, -0.8f, 0.8f);
            }) {}
};

TEST(Multitask, GradientsEqualTheDifferenceQuotientsOfTheLoss) {
  for (const MultitaskConfig::Structure structure : {MultitaskConfig::SHARED_BOTTOM, MultitaskConfig::MMOE}) {
    for (const float dropout : {0.0f, 0.3f}) {
      for (const uint32_t dim : {3u, 5u, 0u}) {  // The first field's vector's width, or none: there are no fields.
        const bool fields = dim > 0;
        SCOPED_TRACE(absl::StrCat("seed ", kLabelsSeed, " ", MultitaskConfig::Structure_Name(structure), " dropout ",
                                  dropout, fields ? absl::StrCat(" width ", dim) : " numbers only"));
        v1::Config config = LabelsConfig(structure);
        if (fields) (*config.mutable_model()->mutable_embedding_dims())["f0"] = dim;
        config.mutable_model()->set_dropout(dropout);
        LabelsInstance setup(config, fields);
        setup.Gradients();
        // The fourth-order quotient's truncation is below h^4 / 30 f^(5), of losses whose logits move by less than 2 h.
        // A loss is a sum of fewer than 64 products of total magnitude below 8.
        constexpr double h = 1.0 / 64;
        constexpr double kTolerance = 18 / (12 * h) * 64 * 8 * 0x1p-24 + 1e-5;
        double largest = 0;
        for (size_t t = 0; t < setup.values.size(); ++t) {
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
        }
        EXPECT_GT(largest, 20 * kTolerance) << "too small to tell";
      }
    }
  }
}

TEST(Multitask, TheLossIsTheWeightedSumOfTheLabelsThatAreThere) {
  LabelsInstance setup(LabelsConfig(MultitaskConfig::MMOE));
  std::vector<float> predictions(kLabelsSamples);
  const double loss = setup.model->Predict(setup.batch, setup.parameters, predictions.data());
  const float* const logits = setup.model->logits();
  const Batch& batch = setup.batch.batch;
  double want = 0;
  for (size_t s = 0; s < kLabelsSamples; ++s) {
    for (size_t k = 0; k < kLabelsCount; ++k) {
      const double z = logits[s * kLabelsCount + k], y = batch.labels[k * kLabelsSamples + s];
      want += (k == 1 ? 0.5 : 1) * batch.label_weights[k * kLabelsSamples + s] * (std::log1p(std::exp(z)) - y * z);
    }
    EXPECT_NEAR(predictions[s], 1 / (1 + std::exp(-logits[s * kLabelsCount])), 1e-6) << "the first label's";
  }
  // Fewer than 32 terms below 4, off by fewer than 32 roundings each.
  EXPECT_NEAR(loss, want, 32 * 4 * 32 * 0x1p-24);
  setup.batch.batch.label_weights.clear();
  EXPECT_EQ(setup.model->Predict(setup.batch, setup.parameters, predictions.data()), 0) << "without labels";
}

TEST(Multitask, ALabelThatIsMissingOrHasNoWeightTrainsNothing) {
  for (const MultitaskConfig::Structure structure : {MultitaskConfig::SHARED_BOTTOM, MultitaskConfig::MMOE}) {
    LabelsInstance all(LabelsConfig(structure)), missing(LabelsConfig(structure));
    v1::Config weightless_config = LabelsConfig(structure);
    (*weightless_config.mutable_model()->mutable_multitask()->mutable_loss_weights())["conversion"] = 0;
    LabelsInstance weightless(weightless_config);
    std::fill_n(missing.batch.batch.label_weights.begin() + 2 * kLabelsSamples, kLabelsSamples, 0.0f);
    all.Gradients();
    missing.Gradients();
    weightless.Gradients();
    EXPECT_THAT(missing.GradientOf("tower/2/0/weight"), Each(0));
    EXPECT_EQ(missing.GradientOf("bias")[2], 0);
    if (structure == MultitaskConfig::MMOE) {
      EXPECT_THAT(missing.GradientOf("gate/2/weight"), Each(0));
    }
    EXPECT_THAT(all.GradientOf("tower/2/0/weight"), testing::Contains(testing::Not(FloatNear(0, 1e-4))));
    EXPECT_EQ(missing.GradientOf("tower/1/0/weight"), all.GradientOf("tower/1/0/weight"));
    EXPECT_EQ(missing.gradients, weightless.gradients);
  }
}

TEST(Multitask, TablesAreNamedAfterWhatTheyAreAndStartAtTheLabelsOdds) {
  const auto names = [](const v1::Config& config) {
    const auto model = Model::Create(config, LabelsSchema());
    EXPECT_TRUE(model.ok()) << model.status();
    std::vector<std::string> tables;
    for (const v1::TableSpec& table : (*model)->tables()) tables.push_back(table.name());
    EXPECT_THAT((*model)->plan().prior, Each(FloatNear(std::log(20.5f / 80.5f), 1e-6f)));
    return tables;
  };
  v1::Config shared = LabelsConfig(MultitaskConfig::SHARED_BOTTOM);
  shared.mutable_model()->mutable_multitask()->clear_tower_hidden();
  EXPECT_THAT(names(shared), ElementsAre("bias", "bottom/0/weight", "bottom/0/bias", "bottom/1/weight", "bottom/1/bias",
                                         "tower/0/0/weight", "tower/1/0/weight", "tower/2/0/weight", "embedding"));
  v1::Config mmoe = LabelsConfig(MultitaskConfig::MMOE);
  mmoe.mutable_model()->clear_hidden();
  mmoe.mutable_model()->add_hidden(4);
  mmoe.mutable_model()->mutable_multitask()->set_experts(2);
  mmoe.mutable_model()->mutable_multitask()->clear_tower_hidden();
  EXPECT_THAT(names(mmoe), ElementsAre("bias", "expert/0/0/weight", "expert/0/0/bias", "expert/1/0/weight",
                                       "expert/1/0/bias", "gate/0/weight", "gate/1/weight", "gate/2/weight",
                                       "tower/0/0/weight", "tower/1/0/weight", "tower/2/0/weight", "embedding"));
}

TEST(Multitask, WhatDoesNotFitIsSaid) {
  const auto error = [](const v1::Config& config, const Schema& schema) {
    return std::string(Model::Create(config, schema).status().message());
  };
  v1::Config config = LabelsConfig(MultitaskConfig::MMOE);
  Schema one = LabelsSchema();
  one.labels.clear();
  one.class_names = {"0", "1"};
  EXPECT_THAT(error(config, one), HasSubstr("multitask takes samples with several labels; name their columns in "
                                            "data.csv.labels"));
  Schema sparse = LabelsSchema();
  sparse.sparse = true;
  EXPECT_THAT(error(config, sparse), HasSubstr("multitask takes categorical fields and numeric features"));
  config.mutable_model()->set_loss(ModelConfig::SQUARED);
  EXPECT_THAT(error(config, LabelsSchema()), HasSubstr("has the logistic loss of each label; leave model.loss out"));
  config = LabelsConfig(MultitaskConfig::MMOE);
  (*config.mutable_model()->mutable_multitask()->mutable_loss_weights())["clik"] = 2;
  EXPECT_THAT(error(config, LabelsSchema()),
              HasSubstr("there is no label \"clik\"; the labels are click, cart, conversion"));
  config = LabelsConfig(MultitaskConfig::MMOE);
  config.mutable_model()->clear_hidden();
  EXPECT_THAT(error(config, LabelsSchema()), HasSubstr("needs hidden layers"));
  Schema many = LabelsSchema();
  many.labels.resize(65, many.labels[0]);
  EXPECT_THAT(error(LabelsConfig(MultitaskConfig::MMOE), many),
              HasSubstr("takes 64 labels at most, and the samples have 65"));
}

TEST(Multitask, AWeightsLabelIsNamedAsInTheFileOrAsInTheConfiguration) {
  v1::Config config = LabelsConfig(MultitaskConfig::MMOE);
  for (const char* column : {"0", "7", "-1"}) config.mutable_data()->mutable_csv()->add_labels(column);
  auto& weights = *config.mutable_model()->mutable_multitask()->mutable_loss_weights();
  weights["0"] = 2;
  weights["-1"] = 3;
  const auto model = Model::Create(config, LabelsSchema());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT((*model)->plan().multitask->loss_weights, ElementsAre(2, 0.5f, 3));
  weights["7"] = 4;
  EXPECT_THAT(std::string(Model::Create(config, LabelsSchema()).status().message()),
              HasSubstr("\"7\" and \"cart\" are one label, cart"));
  weights.clear();
  weights["1"] = 2;
  EXPECT_THAT(std::string(Model::Create(config, LabelsSchema()).status().message()),
              HasSubstr("there is no label \"1\""));
}

std::shared_ptr<v1::ModelDescription> LabelsDescription(const v1::Config& config) {
  const auto model = Model::Create(config, LabelsSchema());
  EXPECT_TRUE(model.ok()) << model.status();
  return std::make_shared<v1::ModelDescription>((*model)->tables()[0].model());
}

TEST(Multitask, ItsDescriptionMakesTheSameModel) {
  for (const MultitaskConfig::Structure structure : {MultitaskConfig::SHARED_BOTTOM, MultitaskConfig::MMOE}) {
    v1::Config config = LabelsConfig(structure);
    config.mutable_model()->set_layer_norm(true);
    const auto description = LabelsDescription(config);
    EXPECT_EQ(description->format(), 6u);
    ASSERT_TRUE(CheckDescription(*description).ok()) << CheckDescription(*description);
    const v1::Config again = worker::ConfigOf(*description);
    EXPECT_THAT(again.data().csv().labels(), ElementsAre("click", "cart", "conversion"));
    const auto model = Model::Create(again, worker::SchemaOf(description));
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_THAT((*model)->plan().multitask->loss_weights, ElementsAre(1, 0.5f, 1));
    std::vector<std::string> tables;
    for (const auto& table : description->tables()) tables.push_back(table.name());
    ASSERT_EQ((*model)->tables().size(), tables.size());
    for (size_t t = 0; t < tables.size(); ++t) EXPECT_EQ((*model)->tables()[t].name(), tables[t]);
    EXPECT_EQ((*model)->plan().multitask->tower.size(), 2u);
    EXPECT_EQ((*model)->plan().prior.size(), kLabelsCount);
    // The same numbers from the same parameters.
    LabelsInstance first(config), second(again);
    std::vector<float> a(kLabelsSamples), b(kLabelsSamples);
    EXPECT_EQ(first.model->Predict(first.batch, first.parameters, a.data()),
              second.model->Predict(second.batch, second.parameters, b.data()));
    EXPECT_EQ(a, b);
  }
}

TEST(Multitask, AModelThatIsTrainedOnKeepsItsStructure) {
  const v1::Config config = LabelsConfig(MultitaskConfig::MMOE);
  Schema schema = LabelsSchema();
  schema.continued = LabelsDescription(config);
  EXPECT_TRUE(Model::Create(config, schema).ok());
  const auto error = [&](const auto& change) {
    v1::Config other = config;
    change(other.mutable_model());
    return std::string(Model::Create(other, schema).status().message());
  };
  EXPECT_THAT(
      error([](ModelConfig* model) { model->mutable_multitask()->set_structure(MultitaskConfig::SHARED_BOTTOM); }),
      HasSubstr("a model of model.multitask.structure: mmoe, and the configuration says shared_bottom"));
  EXPECT_THAT(error([](ModelConfig* model) { model->mutable_multitask()->set_experts(4); }),
              HasSubstr("a model of model.multitask.experts: 3, and the configuration says 4"));
  EXPECT_THAT(error([](ModelConfig* model) { model->mutable_multitask()->add_tower_hidden(4); }),
              HasSubstr("a model of model.multitask.tower_hidden: [3], and the configuration says [3, 4]"));
}

TEST(Multitask, ADescriptionThatContradictsItselfIsRefused) {
  const v1::ModelDescription good = *LabelsDescription(LabelsConfig(MultitaskConfig::MMOE));
  const auto error = [&good](const auto& damage) {
    v1::ModelDescription bad = good;
    damage(&bad);
    return std::string(CheckDescription(bad).message());
  };
  EXPECT_THAT(error([](auto* d) { d->mutable_multitask()->set_structure("tree"); }), HasSubstr("structure tree"));
  EXPECT_THAT(error([](auto* d) { d->mutable_multitask()->set_experts(0); }), HasSubstr("0 experts of mmoe"));
  EXPECT_THAT(error([](auto* d) { d->mutable_multitask()->set_experts(257); }),
              HasSubstr("257 experts, and there are 256 at most"));
  EXPECT_THAT(error([](auto* d) {
                while (d->data().labels_size() < 65) d->mutable_data()->add_labels()->set_name("more");
              }),
              HasSubstr("65 labels, and there are 64 at most"));
  EXPECT_THAT(error([](auto* d) { d->set_outputs(2); }), HasSubstr("3 labels, 2 outputs"));
  EXPECT_THAT(error([](auto* d) { d->clear_hidden(); }), HasSubstr("no hidden layers"));
  EXPECT_THAT(error([](auto* d) { d->mutable_data()->clear_labels(); }), HasSubstr("0 labels beside one"));
  EXPECT_THAT(error([](auto* d) { d->set_type("mlp"); }), HasSubstr("3 labels beside one, of a model of type mlp"));
}

}  // namespace
}  // namespace lodestone::worker
