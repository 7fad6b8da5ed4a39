#include "worker/model/model.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/flush_denormals.h"
#include "tests/worker/model/model_instance.h"

namespace lodestone::worker {
namespace {

using v1::ModelConfig;

constexpr uint64_t kSeed = 20261121;
constexpr size_t kSamples = 6;

float Uniform(uint64_t n, float low, float high) {
  return low + (high - low) * static_cast<float>(RandomUniform(kSeed, n));
}

struct Case {
  std::string name;
  ModelConfig::Type type = ModelConfig::LINEAR;
  ModelConfig::Loss loss = ModelConfig::AUTO;
  uint32_t numeric = 0;
  uint32_t fields = 0;
  bool sparse = false;
  uint32_t classes = 0;
  float l2 = 0;
  float dropout = 0;
  ModelConfig::Activation activation = ModelConfig::RELU;
  // What only some types have.
  bool numeric_pairs = false;
  ModelConfig::L2Per l2_per = ModelConfig::BATCH;
  uint32_t cross_rank = 0;
  v1::CrossConfig::Structure structure = v1::CrossConfig::STACKED;
  bool layer_norm = false;
  std::vector<v1::MultiColumn::Pooling> pooling = {};
  bool weighted = false;
  bool scaled = false;  // Labels are.
  bool linear_apart = false;
  // The first fields' vectors have these widths, the others embedding_dim, which is 3.
  std::vector<uint32_t> dims = {};

  uint32_t outputs() const { return loss == ModelConfig::AUTO && classes > 2 ? classes : 1; }
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

v1::Config ConfigOf(const Case& c) {
  v1::Config config;
  ModelConfig* model = config.mutable_model();
  model->set_type(c.type);
  model->set_loss(c.loss);
  model->set_embedding_dim(3);
  model->add_hidden(5);
  if (c.type != ModelConfig::DLRM) model->add_hidden(4);
  model->add_bottom_hidden(4);
  if (c.linear_apart) model->mutable_linear();
  for (size_t f = 0; f < c.dims.size(); ++f) (*model->mutable_embedding_dims())[absl::StrCat("f", f)] = c.dims[f];
  model->set_l2(c.l2);
  model->set_dropout(c.dropout);
  model->set_activation(c.activation);
  model->set_numeric_pairs(c.numeric_pairs);
  model->set_l2_per(c.l2_per);
  model->set_layer_norm(c.layer_norm);
  model->mutable_cross()->set_layers(2);
  model->mutable_cross()->set_rank(c.cross_rank);
  model->mutable_cross()->set_structure(c.structure);
  return config;
}

Schema SchemaOf(const Case& c) {
  Schema schema;
  schema.numeric_count = c.numeric;
  schema.field_count = c.fields;
  schema.sparse = c.sparse;
  schema.pooling = c.pooling;
  for (uint32_t f = 0; f < c.fields; ++f) schema.description.add_categorical()->set_name(absl::StrCat("f", f));
  if (c.scaled) schema.label_mean = 1.5, schema.label_deviation = 2;
  for (uint32_t k = 0; k < c.classes; ++k) {
    schema.class_names.push_back(absl::StrCat(k));
    schema.class_counts.push_back(3 + k);
  }
  return schema;
}

// A batch in which keys repeat, within a sample too where it is sparse.
KeyedBatch BatchOf(const Case& c) {
  KeyedBatch keyed;
  Batch& batch = keyed.batch;
  batch.size = kSamples;
  batch.offsets = {0};
  uint64_t n = 1000;
  for (size_t s = 0; s < kSamples; ++s) {
    batch.labels.push_back(c.classes > 0 ? static_cast<float>(s % c.classes) : Uniform(n++, -2, 2));
    for (uint32_t i = 0; i < c.numeric; ++i) batch.numeric.push_back(Uniform(n++, -1, 1));
    if (c.weighted) batch.weights.push_back(s == 1 ? 0.0f : 0.25f * static_cast<float>(s + 1));
    const size_t features = c.sparse ? s : c.fields;  // The first sparse sample has none.
    for (size_t f = 0; f < features; ++f) {
      const size_t several = c.pooling.empty() ? 1 : 1 + (s + f) % 3;
      for (size_t i = 0; i < several; ++i) {
        const Key value = RandomBits(kSeed, n++) % 3;
        batch.keys.push_back(c.sparse ? value : 100 * f + value);
        if (c.sparse) batch.values.push_back(Uniform(n++, 0.5, 1));
        if (c.pooling.empty()) continue;
        const bool mean = c.pooling[f] == v1::MultiColumn::MEAN;
        batch.values.push_back(mean ? 1.0f / static_cast<float>(several) : 1.0f);
      }
      if (!c.pooling.empty()) batch.offsets.push_back(static_cast<uint32_t>(batch.keys.size()));
    }
    if (c.pooling.empty()) batch.offsets.push_back(static_cast<uint32_t>(batch.keys.size()));
  }
  return keyed;
}

// Draws from `n` on.
void FillValues(const Case& c, const v1::TableSpec& table, const std::vector<Key>& keys, uint64_t* n,
                std::vector<float>* values) {
  // ReLU's inputs keep away from its kink, so that no difference quotient crosses it: biases before it are 2 or -2,
  // and the products beside them mostly below 1.
  const bool bias = table.name().ends_with("/bias") && !table.name().starts_with("cross/");
  const float range = !table.name().ends_with("/weight")     ? 0.7f
                      : table.dense().dims(1) == c.outputs() ? 1.0f
                      // The smaller the sums, the steeper their normalisation.
                      : c.layer_norm ? 2.0f
                                     : 0.3f;
  std::vector<float>& v = *values;
  for (float& x : v) x = bias ? 2.0f : Uniform(*n, -range, range), ++*n;
  if (bias) v[0] = -2;
  if (c.pooling.empty()) return;
  // The rows of a field's keys keep away from one another in each element, so that no difference quotient crosses
  // the kink of the largest: by 0.31 at least, of which it goes 0.25. What dlrm multiplies shall not be too small; its
  // dense values are like these, all of one sign, so that all hidden units count.
  const bool dlrm = c.type == ModelConfig::DLRM;
  if (!table.has_embedding() && !dlrm) return;
  const uint32_t dim = table.embedding().dim();
  for (size_t i = 0; i < v.size(); ++i) {
    const uint64_t place = ((table.has_embedding() ? keys[i / dim] % 100 : 0) + i % dim) % 3;
    v[i] = (dlrm ? 0.5f : 0.0f) + 0.35f * (static_cast<float>(place) - 1) + 0.02f * Uniform(10'000 + i, -1, 1);
  }
}

struct Instance : ModelInstance {
  explicit Instance(const Case& c) : Instance(c, ConfigOf(c)) {}
  Instance(const Case& c, const v1::Config& config)
      : ModelInstance(
            config, SchemaOf(c), BatchOf(c), kSeed,
            [&c, n = uint64_t{0}](const v1::TableSpec& table, const std::vector<Key>& keys,
                                  std::vector<float>* values) mutable { FillValues(c, table, keys, &n, values); }) {}

  // What Gradients differentiates, by dropout's own seed.
  double Objective(const Case& c) {
    double value = ModelInstance::Objective();
    for (size_t t = model->dense_table_count(); t < values.size(); ++t) {
      const KeyedBatch::Group& group = batch.groups[model->plan().groups.OfTable(t - model->dense_table_count())];
      const size_t dim = values[t].size() / group.keys.size();
      std::vector<double> counts(group.keys.size(), c.l2_per == ModelConfig::BATCH ? 1 : 0);
      if (c.l2_per == ModelConfig::SAMPLE) {
        for (const uint32_t row : group.row) counts[row] += 1.0 / kSamples;
      }
      for (size_t i = 0; i < values[t].size(); ++i) value += c.l2 / 2 * counts[i / dim] * values[t][i] * values[t][i];
    }
    return value;
  }
};

class GradientTest : public testing::TestWithParam<Case> {};

TEST_P(GradientTest, EqualsTheDifferenceQuotientOfTheLoss) {
  Instance setup(GetParam());
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  setup.Gradients();
  // The fourth-order quotient (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h. Truncation is h^4 / 30 f^(5) < 1e-6 here. A
  // loss is a sum of fewer than 64 products of total magnitude below 8, in float: its error is below 64 * 8 * 2^-24,
  // and the quotient multiplies it by at most 18 / 12h.
  constexpr double h = 1.0 / 16;
  constexpr double kTolerance = 18 / (12 * h) * 64 * 8 * 0x1p-24;
  for (size_t t = 0; t < setup.values.size(); ++t) {
    double largest = 0;
    for (size_t i = 0; i < setup.values[t].size(); ++i) {
      float& x = setup.values[t][i];
      const float before = x;
      const auto at = [&](double dx) {
        x = static_cast<float>(before + dx);
        const double value = setup.Objective(GetParam());
        x = before;
        return value;
      };
      const double quotient = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
      const double gradient = setup.gradients[t][i];
      ASSERT_NEAR(gradient, quotient, kTolerance) << setup.model->tables()[t].name() << "[" << i << "]";
      largest = std::max(largest, std::abs(gradient));
    }
    EXPECT_GT(largest, 8 * kTolerance) << "too small to tell: " << setup.model->tables()[t].name();
  }
}

TEST_P(GradientTest, TellsThePredictionsThatTheLossIsOf) {
  Case without_dropout = GetParam();
  without_dropout.dropout = 0;
  for (const Case& c : {GetParam(), without_dropout}) {
    Instance setup(c), silent(c);
    std::vector<float> told(kSamples, std::nanf("")), predicted(kSamples);
    const double loss = setup.model->Gradients(setup.batch, setup.parameters, kSeed, setup.outputs, told.data());
    EXPECT_EQ(loss, silent.Gradients());
    EXPECT_EQ(setup.gradients, silent.gradients);
    for (const float prediction : told) EXPECT_TRUE(std::isfinite(prediction));
    setup.model->Predict(setup.batch, setup.parameters, predicted.data());
    if (c.dropout == 0) {
      EXPECT_EQ(told, predicted);
    }
  }
}

TEST_P(GradientTest, IsTheSameToTheBitTwice) {
  Instance a(GetParam()), b(GetParam());
  const double loss = a.Gradients();
  EXPECT_EQ(loss, b.Gradients());
  EXPECT_EQ(a.gradients, b.gradients);
  EXPECT_EQ(loss, a.Gradients());
  EXPECT_EQ(a.gradients, b.gradients);
}

INSTANTIATE_TEST_SUITE_P(
    Models, GradientTest,
    testing::Values(
        Case{"LinearSparse", ModelConfig::LINEAR, ModelConfig::AUTO, 0, 0, true, 2, 0, 0},
        Case{"LinearSoftmax", ModelConfig::LINEAR, ModelConfig::AUTO, 3, 2, false, 4, 0, 0},
        Case{"LeastSquares", ModelConfig::LINEAR, ModelConfig::SQUARED, 3, 0, false, 0, 0, 0},
        Case{"LinearL2", ModelConfig::LINEAR, ModelConfig::AUTO, 0, 0, true, 2, 0.3, 0},
        Case{"FmSparse", ModelConfig::FM, ModelConfig::AUTO, 0, 0, true, 2, 0, 0},
        Case{"FmFields", ModelConfig::FM, ModelConfig::AUTO, 2, 3, false, 2, 0.2, 0},
        Case{"Mf", ModelConfig::MF, ModelConfig::AUTO, 0, 2, false, 0, 0.1, 0},
        Case{"DeepFm", ModelConfig::DEEPFM, ModelConfig::SQUARED, 2, 2, false, 0, 0, 0},
        Case{"DeepFmFieldsOnly", ModelConfig::DEEPFM, ModelConfig::SQUARED, 0, 2, false, 0, 0.1, 0},
        Case{"Dlrm", ModelConfig::DLRM, ModelConfig::SQUARED, 3, 2, false, 0, 0, 0},
        Case{"DlrmSoftmax", ModelConfig::DLRM, ModelConfig::AUTO, 3, 2, false, 3, 0, 0},
        Case{"LinearL2PerSample", ModelConfig::LINEAR, ModelConfig::AUTO, 0, 0, true, 2, 0.3, 0, ModelConfig::RELU,
             false, ModelConfig::SAMPLE},
        Case{"FmL2PerSample", ModelConfig::FM, ModelConfig::AUTO, 2, 3, false, 2, 0.2, 0, ModelConfig::RELU, false,
             ModelConfig::SAMPLE},
        Case{"FmNumericPairs", ModelConfig::FM, ModelConfig::AUTO, 3, 2, false, 2, 0.1, 0, ModelConfig::RELU, true},
        Case{"DeepFmNumericPairs", ModelConfig::DEEPFM, ModelConfig::SQUARED, 2, 2, false, 0, 0, 0, ModelConfig::RELU,
             true},
        Case{"WideDeep", ModelConfig::WIDEDEEP, ModelConfig::SQUARED, 2, 2, false, 0, 0.1, 0},
        Case{"WideDeepSoftmax", ModelConfig::WIDEDEEP, ModelConfig::AUTO, 2, 2, false, 3, 0, 0},
        Case{.name = "WideDeepFieldDims",
             .type = ModelConfig::WIDEDEEP,
             .loss = ModelConfig::SQUARED,
             .numeric = 2,
             .fields = 3,
             .l2 = 0.1f,
             .dims = {5, 3, 2}},
        Case{.name = "WideDeepFieldDimsLinearApart",
             .type = ModelConfig::WIDEDEEP,
             .loss = ModelConfig::SQUARED,
             .fields = 3,
             .l2 = 0.2f,
             .l2_per = ModelConfig::SAMPLE,
             .linear_apart = true,
             .dims = {2, 3, 2}},
        Case{.name = "MlpFieldDimsPooled",
             .type = ModelConfig::MLP,
             .loss = ModelConfig::SQUARED,
             .numeric = 1,
             .fields = 3,
             .pooling = {v1::MultiColumn::SUM, v1::MultiColumn::MAX, v1::MultiColumn::MEAN},
             .dims = {2, 4, 2}},
        Case{.name = "MlpOneOtherDim",
             .type = ModelConfig::MLP,
             .loss = ModelConfig::SQUARED,
             .fields = 2,
             .dims = {4, 4}},
        Case{.name = "DcnFieldDims",
             .type = ModelConfig::DCN,
             .loss = ModelConfig::SQUARED,
             .numeric = 2,
             .fields = 2,
             .activation = ModelConfig::GELU,
             .dims = {4}},
        Case{.name = "FmLinearApart", .type = ModelConfig::FM, .fields = 2, .classes = 2, .linear_apart = true},
        Case{"MlpFields", ModelConfig::MLP, ModelConfig::SQUARED, 2, 2, false, 0, 0, 0},
        Case{"MlpFieldsOnly", ModelConfig::MLP, ModelConfig::AUTO, 0, 2, false, 3, 0.1, 0},
        Case{"Dcn", ModelConfig::DCN, ModelConfig::SQUARED, 2, 2, false, 0, 0, 0, ModelConfig::GELU},
        Case{"DcnNumbersOnly", ModelConfig::DCN, ModelConfig::AUTO, 4, 0, false, 2, 0, 0, ModelConfig::GELU},
        Case{"DcnLowRank", ModelConfig::DCN, ModelConfig::SQUARED, 2, 2, false, 0, 0, 0, ModelConfig::GELU, false,
             ModelConfig::BATCH, 2},
        Case{"DcnParallel", ModelConfig::DCN, ModelConfig::SQUARED, 2, 2, false, 0, 0.1, 0.3, ModelConfig::GELU, false,
             ModelConfig::BATCH, 0, v1::CrossConfig::PARALLEL},
        Case{"DcnParallelLowRank", ModelConfig::DCN, ModelConfig::AUTO, 2, 2, false, 3, 0, 0, ModelConfig::GELU, false,
             ModelConfig::BATCH, 2, v1::CrossConfig::PARALLEL},
        Case{"MlpLayerNorm", ModelConfig::MLP, ModelConfig::SQUARED, 4, 0, false, 0, 0, 0, ModelConfig::GELU, false,
             ModelConfig::BATCH, 0, v1::CrossConfig::STACKED, true},
        Case{"DlrmLayerNormDropout", ModelConfig::DLRM, ModelConfig::SQUARED, 3, 2, false, 0, 0, 0.3, ModelConfig::GELU,
             false, ModelConfig::BATCH, 0, v1::CrossConfig::STACKED, true},
        Case{"MlpSoftmax", ModelConfig::MLP, ModelConfig::AUTO, 4, 0, false, 3, 0, 0},
        Case{"MlpDropout", ModelConfig::MLP, ModelConfig::SQUARED, 4, 0, false, 0, 0, 0.3}),
    [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

std::vector<Case> WeightedCases() {
  std::vector<Case> cases = {
      {"LinearWeighted", ModelConfig::LINEAR, ModelConfig::AUTO, 0, 0, true, 2, 0.1, 0},
      {"LinearSoftmaxWeighted", ModelConfig::LINEAR, ModelConfig::AUTO, 3, 2, false, 4, 0, 0},
      {"FmWeighted", ModelConfig::FM, ModelConfig::SQUARED, 2, 3, false, 0, 0, 0},
      {"DeepFmWeighted", ModelConfig::DEEPFM, ModelConfig::SQUARED, 2, 2, false, 0, 0, 0, ModelConfig::GELU},
      {"LinearScaled", ModelConfig::LINEAR, ModelConfig::SQUARED, 3, 2, false, 0, 0, 0},
      {"LinearScaledWeighted", ModelConfig::LINEAR, ModelConfig::SQUARED, 3, 2, false, 0, 0, 0}};
  for (Case& c : cases) {
    c.weighted = c.name.ends_with("Weighted");
    c.scaled = c.name.find("Scaled") != std::string::npos;
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Weighted, GradientTest, testing::ValuesIn(WeightedCases()),
                         [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

TEST(Model, AWeightMultipliesASamplesLoss) {
  const Case plain{"linear", ModelConfig::LINEAR, ModelConfig::AUTO, 3, 2, false, 2, 0, 0};
  Case weighted = plain;
  weighted.weighted = true;
  Instance a(plain), b(weighted);
  double want = 0;
  std::vector<float> x(kSamples), y(kSamples);
  a.model->Predict(a.batch, a.parameters, x.data());
  const double loss = b.model->Predict(b.batch, b.parameters, y.data());
  EXPECT_EQ(x, y);
  for (size_t i = 0; i < kSamples; ++i) {
    want -= b.batch.batch.weights[i] * std::log(b.batch.batch.labels[i] > 0 ? x[i] : 1 - x[i]);
  }
  EXPECT_NEAR(loss, want, 1e-5);
}

TEST(Model, ScaledLabelsAreUndoneInPredictions) {
  const Case plain{"linear", ModelConfig::LINEAR, ModelConfig::SQUARED, 3, 2, false, 0, 0, 0};
  Case scaled = plain;
  scaled.scaled = true;  // Mean 1.5, deviation 2.
  Instance a(plain), b(scaled);
  std::vector<float> outputs(kSamples), predictions(kSamples);
  a.model->Predict(a.batch, a.parameters, outputs.data());
  const double loss = b.model->Predict(b.batch, b.parameters, predictions.data());
  double want = 0;
  for (size_t i = 0; i < kSamples; ++i) {
    EXPECT_NEAR(predictions[i], 1.5 + 2 * outputs[i], 1e-6);
    const double error = (predictions[i] - b.batch.batch.labels[i]) / 2;
    want += error * error / 2;
  }
  EXPECT_NEAR(loss, want, 1e-5);
}

// Every type that takes fields, with fields of several keys. (Sums without the largest take another way.)
std::vector<Case> PoolingCases() {
  std::vector<Case> cases;
  for (const bool max : {true, false}) {
    const auto third = max ? v1::MultiColumn::MAX : v1::MultiColumn::SUM;
    const auto add = [&](const std::string& name, ModelConfig::Type type, ModelConfig::Loss loss, uint32_t numeric,
                         uint32_t classes) {
      Case c{name + (max ? "Max" : "Sums"), type, loss, numeric, 3, false, classes, 0, 0};
      c.activation = ModelConfig::GELU;
      c.pooling = {v1::MultiColumn::MEAN, v1::MultiColumn::SUM, third};
      cases.push_back(c);
      c.name += "L2PerSample";
      c.l2 = 0.2;
      c.l2_per = ModelConfig::SAMPLE;
      cases.push_back(c);
    };
    add("Linear", ModelConfig::LINEAR, ModelConfig::AUTO, 2, 3);
    add("Fm", ModelConfig::FM, ModelConfig::AUTO, 2, 2);
    add("DeepFm", ModelConfig::DEEPFM, ModelConfig::SQUARED, 2, 0);
    add("Mlp", ModelConfig::MLP, ModelConfig::SQUARED, 2, 0);
    add("WideDeep", ModelConfig::WIDEDEEP, ModelConfig::SQUARED, 2, 0);
    add("Dcn", ModelConfig::DCN, ModelConfig::SQUARED, 2, 0);
    add("Dlrm", ModelConfig::DLRM, ModelConfig::SQUARED, 3, 0);
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Pooling, GradientTest, testing::ValuesIn(PoolingCases()),
                         [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

TEST(Model, AFieldOfOneKeyIsWhatItIsWithoutPooling) {
  const Case plain{"deepfm", ModelConfig::DEEPFM, ModelConfig::SQUARED, 2, 2, false, 0, 0, 0};
  Instance a(plain), b(plain);
  Case pooled = plain;
  pooled.pooling = {v1::MultiColumn::MEAN, v1::MultiColumn::MAX};
  b.model = *Model::Create(ConfigOf(pooled), SchemaOf(pooled));
  Batch& batch = b.batch.batch;
  batch.offsets.clear();
  for (uint32_t f = 0; f <= kSamples * plain.fields; ++f) batch.offsets.push_back(f);
  std::vector<float> x(kSamples), y(kSamples);
  a.model->Predict(a.batch, a.parameters, x.data());
  b.model->Predict(b.batch, b.parameters, y.data());
  EXPECT_EQ(x, y);
  EXPECT_EQ(a.Gradients(), b.Gradients());
  // The terms' gradients of a row are added up in another order.
  for (size_t t = 0; t < a.gradients.size(); ++t) {
    for (size_t i = 0; i < a.gradients[t].size(); ++i) {
      EXPECT_NEAR(a.gradients[t][i], b.gradients[t][i], 16 * 0x1p-24 * 4);
    }
  }
}

// Every activation, with dropout and without, in one mlp and in two.
std::vector<Case> ActivationCases() {
  std::vector<Case> cases;
  const auto& activations = *ModelConfig::Activation_descriptor();
  for (int i = 0; i < activations.value_count(); ++i) {
    const std::string& name = activations.value(i)->name();
    const auto activation = static_cast<ModelConfig::Activation>(activations.value(i)->number());
    cases.push_back({name + "Mlp", ModelConfig::MLP, ModelConfig::AUTO, 4, 0, false, 3, 0, 0, activation});
    cases.push_back({name + "Dropout", ModelConfig::MLP, ModelConfig::SQUARED, 4, 0, false, 0, 0, 0.3, activation});
    cases.push_back({name + "Dlrm", ModelConfig::DLRM, ModelConfig::SQUARED, 3, 2, false, 0, 0, 0, activation});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Activations, GradientTest, testing::ValuesIn(ActivationCases()),
                         [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

TEST(Model, AnotherActivationIsAnotherModel) {
  const Case relu{"relu", ModelConfig::MLP, ModelConfig::SQUARED, 4, 0, false, 0, 0, 0};
  Case gelu = relu;
  gelu.activation = ModelConfig::GELU;
  Instance a(relu), b(gelu);
  std::vector<float> x(kSamples), y(kSamples);
  a.model->Predict(a.batch, a.parameters, x.data());
  b.model->Predict(b.batch, b.parameters, y.data());
  EXPECT_NE(x, y);
}

TEST(Model, MatrixFactorizationIsMeanPlusBiasesPlusDotProduct) {
  Instance setup({"mf", ModelConfig::MF, ModelConfig::AUTO, 0, 2, false, 0, 0, 0});
  std::vector<float> predictions(kSamples);
  const double loss = setup.model->Predict(setup.batch, setup.parameters, predictions.data());
  double expected_loss = 0;
  for (size_t s = 0; s < kSamples; ++s) {
    const uint32_t user = setup.batch.groups[0].row[2 * s], item = setup.batch.groups[0].row[2 * s + 1];
    const float *const user_row = &setup.values[1][4 * user], *const item_row = &setup.values[1][4 * item];
    double expected = setup.values[0][0] + user_row[0] + item_row[0];
    for (size_t d = 1; d <= 3; ++d) expected += user_row[d] * item_row[d];
    EXPECT_NEAR(predictions[s], expected, 16 * 4 * 0x1p-24);
    const double error = expected - setup.batch.batch.labels[s];
    expected_loss += error * error / 2;
  }
  EXPECT_NEAR(loss, expected_loss, expected_loss * 1e-5);
}

TEST(Model, FactorizationMachineSumsAllPairsOfASample) {
  Instance setup({"fm", ModelConfig::FM, ModelConfig::SQUARED, 0, 0, true, 0, 0, 0});
  std::vector<float> predictions(kSamples);
  setup.model->Predict(setup.batch, setup.parameters, predictions.data());
  const Batch& batch = setup.batch.batch;
  for (size_t s = 0; s < kSamples; ++s) {
    double expected = setup.values[0][0];
    for (uint32_t f = batch.offsets[s]; f < batch.offsets[s + 1]; ++f) {
      const float* const row = &setup.values[1][4 * setup.batch.groups[0].row[f]];
      expected += row[0] * batch.values[f];
      for (uint32_t g = f + 1; g < batch.offsets[s + 1]; ++g) {
        const float* const other = &setup.values[1][4 * setup.batch.groups[0].row[g]];
        for (size_t d = 1; d <= 3; ++d) expected += row[d] * other[d] * batch.values[f] * batch.values[g];
      }
    }
    EXPECT_NEAR(predictions[s], expected, 64 * 8 * 0x1p-24) << "sample " << s;
  }
}

TEST(Model, NumbersAreInAllPairsWithTheirOwnVectors) {
  Case c{"fm", ModelConfig::FM, ModelConfig::SQUARED, 3, 2, false, 0, 0, 0};
  c.numeric_pairs = true;
  Instance setup(c);
  std::vector<float> predictions(kSamples);
  setup.model->Predict(setup.batch, setup.parameters, predictions.data());
  const auto values = [&](const char* name) -> const std::vector<float>& {
    return setup.values[setup.model->plan().TableIndex(name)];
  };
  const Batch& batch = setup.batch.batch;
  for (size_t s = 0; s < kSamples; ++s) {
    double expected = values("bias")[0];
    std::vector<std::vector<double>> vectors;  // Times the feature's value.
    for (uint32_t f = batch.offsets[s]; f < batch.offsets[s + 1]; ++f) {
      const float* const row = &values("embedding")[4 * setup.batch.groups[0].row[f]];
      expected += row[0];
      vectors.emplace_back(row + 1, row + 4);
    }
    for (size_t j = 0; j < 3; ++j) {
      const double x = batch.numeric[3 * s + j];
      expected += x * values("numeric")[j];
      vectors.emplace_back();
      for (size_t d = 0; d < 3; ++d) vectors.back().push_back(x * values("numeric_embedding")[3 * j + d]);
    }
    for (size_t i = 0; i < vectors.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        for (size_t d = 0; d < 3; ++d) expected += vectors[i][d] * vectors[j][d];
      }
    }
    EXPECT_NEAR(predictions[s], expected, 64 * 8 * 0x1p-24) << "sample " << s;
  }
}

// Whether the linear weights are columns of table "embedding" or a table of their own makes no difference to a bit.
TEST(Model, LinearWeightsAreTheSameModelWhereverTheyLie) {
  std::vector<Case> cases = {
      {"fm", ModelConfig::FM, ModelConfig::AUTO, 0, 0, true, 2, 0.2f, 0},
      {"deepfm", ModelConfig::DEEPFM, ModelConfig::SQUARED, 2, 2, false, 0, 0.1f, 0.3f},
      {"widedeep", ModelConfig::WIDEDEEP, ModelConfig::AUTO, 2, 2, false, 3, 0, 0},
      {"pooled", ModelConfig::DEEPFM, ModelConfig::SQUARED, 2, 2, false, 0, 0.1f, 0},
  };
  cases.back().pooling = {v1::MultiColumn::MAX, v1::MultiColumn::MEAN};
  cases.back().l2_per = ModelConfig::SAMPLE;
  for (const Case& c : cases) {
    Case divided = c;
    divided.linear_apart = true;
    Instance joined(c), apart(divided);
    const ModelPlan& plan = joined.model->plan();
    const size_t outputs = plan.linear_columns, width = outputs + 3;
    ASSERT_EQ(outputs, c.outputs()) << c.name;
    std::vector<float>& rows = joined.values[plan.TableIndex("embedding")];
    const auto copy = [&](const char* table, size_t from, size_t columns) {
      const std::vector<float>& own = apart.values[apart.model->plan().TableIndex(table)];
      for (size_t i = 0; i < own.size(); ++i) rows[i / columns * width + from + i % columns] = own[i];
    };
    copy("linear", 0, outputs);
    copy("embedding", outputs, 3);
    for (size_t t = 0; t < plan.dense_tables.size(); ++t) joined.values[t] = apart.values[t];
    for (size_t t = 0; t < joined.values.size(); ++t) joined.parameters[t] = joined.values[t].data();
    EXPECT_EQ(joined.Gradients(), apart.Gradients()) << c.name;
    std::vector<float> linear, vectors;
    const std::vector<float>& got = joined.GradientOf("embedding");
    for (size_t i = 0; i < got.size(); ++i) (i % width < outputs ? linear : vectors).push_back(got[i]);
    EXPECT_EQ(linear, apart.GradientOf("linear")) << c.name;
    EXPECT_EQ(vectors, apart.GradientOf("embedding")) << c.name;
    for (size_t t = 0; t < plan.dense_tables.size(); ++t) EXPECT_EQ(joined.gradients[t], apart.gradients[t]) << c.name;
  }
}

TEST(Model, FieldsThatAreSaidToHaveTheDefaultWidthAreTheSameModel) {
  const Case c{"widedeep", ModelConfig::WIDEDEEP, ModelConfig::SQUARED, 2, 2, false, 0, 0.1f, 0};
  Case said = c;
  said.dims = {3, 3};
  Instance plain(c), named(said);
  EXPECT_EQ(named.model->tables().size(), plain.model->tables().size());
  EXPECT_EQ(plain.Gradients(), named.Gradients());
  EXPECT_EQ(plain.gradients, named.gradients);
  EXPECT_FALSE(named.model->plan().has_field_dims());
}

TEST(Model, AFieldsVectorOfAnotherWidthStandsInItsPlaceOfTheFeatures) {
  Case c{"mlp", ModelConfig::MLP, ModelConfig::SQUARED, 1, 3, false, 0, 0, 0};
  c.dims = {5, 3, 2};
  Instance setup(c);
  const ModelPlan& plan = setup.model->plan();
  EXPECT_EQ(plan.FeatureWidth(), 11u);
  EXPECT_EQ(plan.FieldColumns(1).from, 0u) << "that of embedding_dim";
  EXPECT_EQ(plan.FieldColumns(2).from, 3u) << "then the narrowest";
  EXPECT_EQ(plan.FieldColumns(0).from, 5u);
  EXPECT_EQ(plan.FieldColumns(0).columns, 5u);
  std::vector<float> predictions(kSamples);
  setup.model->Predict(setup.batch, setup.parameters, predictions.data());
  const auto& value_of = [&](const std::string& table) -> const std::vector<float>& {
    return setup.values[plan.TableIndex(table)];
  };
  for (size_t s = 0; s < kSamples; ++s) {
    std::vector<double> x;
    for (const auto& [table, group, dim] :
         {std::tuple("embedding", 0, 3), {"embedding/2", 1, 2}, {"embedding/5", 2, 5}}) {
      const uint32_t row = setup.batch.groups[group].row[s];
      for (int d = 0; d < dim; ++d) x.push_back(value_of(table)[row * dim + d]);
    }
    x.push_back(setup.batch.batch.numeric[s]);
    for (size_t layer = 0; layer < plan.mlp.size(); ++layer) {
      std::vector<double> y(plan.mlp[layer].out);
      const std::vector<float>& weight = value_of(absl::StrCat("mlp/", layer, "/weight"));
      for (size_t o = 0; o < y.size(); ++o) {
        for (size_t i = 0; i < x.size(); ++i) y[o] += x[i] * weight[i * y.size() + o];
        if (!plan.mlp[layer].has_bias()) continue;
        y[o] = std::max(0.0, y[o] + value_of(absl::StrCat("mlp/", layer, "/bias"))[o]);
      }
      x = y;
    }
    EXPECT_NEAR(predictions[s], value_of("bias")[0] + x[0], 64 * 8 * 0x1p-24) << "sample " << s;
  }
}

TEST(Model, CrossLayersMultiplyTheFeaturesByALinearMapOfTheLastLayer) {
  for (const uint32_t rank : {0u, 2u}) {
    Case c{"dcn", ModelConfig::DCN, ModelConfig::SQUARED, 4, 0, false, 0, 0, 0};
    c.cross_rank = rank;
    v1::Config config = ConfigOf(c);
    config.mutable_model()->clear_hidden();  // Nothing but the cross network and a linear layer over it.
    Instance setup(c, config);
    std::vector<float> predictions(kSamples);
    setup.model->Predict(setup.batch, setup.parameters, predictions.data());
    const auto value = [&](const std::string& name, size_t i) {
      return static_cast<double>(setup.values[setup.model->plan().TableIndex(name)][i]);
    };
    for (size_t s = 0; s < kSamples; ++s) {
      const float* const x0 = &setup.batch.batch.numeric[4 * s];
      std::vector<double> x(x0, x0 + 4);
      for (size_t l = 0; l < 2; ++l) {
        const std::string layer = absl::StrCat("cross/", l);
        std::vector<double> next = x;
        for (size_t to = 0; to < 4; ++to) {
          double product = value(layer + "/bias", to);
          for (size_t from = 0; from < 4; ++from) {
            double weight = rank == 0 ? value(layer + "/weight", 4 * from + to) : 0;
            for (size_t r = 0; r < rank; ++r) {
              weight += value(layer + "/down", rank * from + r) * value(layer + "/up", 4 * r + to);
            }
            product += x[from] * weight;
          }
          next[to] += x0[to] * product;
        }
        x = next;
      }
      double expected = value("bias", 0);
      for (size_t i = 0; i < 4; ++i) expected += x[i] * value("mlp/0/weight", i);
      EXPECT_NEAR(predictions[s], expected, 64 * 8 * 0x1p-24) << "sample " << s << " rank " << rank;
    }
  }
}

TEST(Model, LinearSoftmaxPredictsTheLargestLogit) {
  const Case c{"softmax", ModelConfig::LINEAR, ModelConfig::AUTO, 3, 0, false, 4, 0, 0};
  Instance setup(c);
  std::vector<float> predictions(kSamples);
  const double loss = setup.model->Predict(setup.batch, setup.parameters, predictions.data());
  double expected_loss = 0;
  for (size_t s = 0; s < kSamples; ++s) {
    std::vector<double> logits(4);
    double sum = 0;
    for (size_t k = 0; k < 4; ++k) {
      logits[k] = setup.values[0][k] + setup.model->plan().prior[k];
      for (size_t i = 0; i < 3; ++i) logits[k] += setup.batch.batch.numeric[3 * s + i] * setup.values[1][4 * i + k];
      sum += std::exp(logits[k]);
    }
    EXPECT_EQ(predictions[s], std::max_element(logits.begin(), logits.end()) - logits.begin());
    expected_loss += std::log(sum) - logits[static_cast<size_t>(setup.batch.batch.labels[s])];
  }
  EXPECT_NEAR(loss, expected_loss, expected_loss * 1e-5);
}

TEST(Model, RowGradientsFollowTheKeysWhateverTheirOrder) {
  const Case c{"fm", ModelConfig::FM, ModelConfig::AUTO, 0, 3, false, 2, 0, 0};
  Instance forward(c), reordered(c);
  // The same batch with its distinct keys numbered the other way round.
  const uint32_t last = static_cast<uint32_t>(forward.batch.KeysOf(0).size()) - 1;
  KeyedBatch::Group& group = reordered.batch.groups[0];
  std::reverse(group.keys.begin(), group.keys.end());
  for (uint32_t& row : group.row) row = last - row;
  const size_t t = forward.model->plan().TableIndex("embedding"), dim = forward.values[t].size() / (last + 1);
  for (uint32_t row = 0; row <= last; ++row) {
    std::copy_n(&forward.values[t][row * dim], dim, &reordered.values[t][(last - row) * dim]);
  }
  forward.model->Gradients(forward.batch, forward.parameters, 0, forward.outputs);
  reordered.model->Gradients(reordered.batch, reordered.parameters, 0, reordered.outputs);
  for (uint32_t row = 0; row <= last; ++row) {
    for (size_t d = 0; d < dim; ++d) {
      EXPECT_EQ(forward.gradients[t][row * dim + d], reordered.gradients[t][(last - row) * dim + d]);
    }
  }
}

TEST(Model, AStepTakesDenormalsForZeroAndItsThreadDoesNotAfterIt) {
  if (!kernels::FlushDenormals::kAvailable) GTEST_SKIP() << "this processor's mode is not known";
  Instance setup({"least squares", ModelConfig::LINEAR, ModelConfig::SQUARED, 3, 0, false, 0, 0, 0});
  constexpr float kDenormal = std::numeric_limits<float>::min() / 4;
  for (std::vector<float>& values : setup.values) std::fill(values.begin(), values.end(), kDenormal);
  std::vector<float> told(kSamples, -1), predicted(kSamples, -1);
  setup.model->Gradients(setup.batch, setup.parameters, kSeed, setup.outputs, told.data());
  setup.model->Predict(setup.batch, setup.parameters, predicted.data());
  volatile float after = kDenormal;
  after = after * 2;
  EXPECT_EQ(told, std::vector<float>(kSamples, 0));
  EXPECT_EQ(predicted, std::vector<float>(kSamples, 0));
  EXPECT_EQ(after, kDenormal * 2);
}

TEST(Model, DropsOnlyInTraining) {
  const Case with{"with", ModelConfig::MLP, ModelConfig::SQUARED, 4, 0, false, 0, 0, 0.5};
  Case without = with;
  without.dropout = 0;
  Instance a(with), b(without);
  std::vector<float> x(kSamples), y(kSamples);
  a.model->Predict(a.batch, a.parameters, x.data());
  b.model->Predict(b.batch, b.parameters, y.data());
  EXPECT_EQ(x, y);
  const double first = a.model->Gradients(a.batch, a.parameters, 1, a.outputs);
  EXPECT_NE(first, a.model->Gradients(a.batch, a.parameters, 2, a.outputs));
  EXPECT_EQ(first, a.model->Gradients(a.batch, a.parameters, 1, a.outputs));
}

TEST(Model, ScratchOfALargeBatchDoesNotLeakIntoASmallOne) {
  const Case c{"deepfm", ModelConfig::DEEPFM, ModelConfig::AUTO, 2, 2, false, 2, 0, 0};
  Instance setup(c), fresh(c);
  const auto shrink = [](KeyedBatch* keyed) {
    Batch& batch = keyed->batch;
    batch.size = 2;
    batch.labels.resize(2);
    batch.numeric.resize(4);
    batch.offsets.resize(3);
    batch.keys.resize(4);
    keyed->groups[0].row.resize(4);  // The distinct keys stay: rows that no sample has get a gradient of zero.
  };
  setup.model->Gradients(setup.batch, setup.parameters, 0, setup.outputs);
  shrink(&setup.batch);
  shrink(&fresh.batch);
  const double loss = setup.model->Gradients(setup.batch, setup.parameters, 0, setup.outputs);
  EXPECT_EQ(loss, fresh.model->Gradients(fresh.batch, fresh.parameters, 0, fresh.outputs));
  EXPECT_EQ(setup.gradients, fresh.gradients);
}

}  // namespace
}  // namespace lodestone::worker
