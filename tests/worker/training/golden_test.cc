// Ten steps of each kind of model, on the CPU and on a CUDA device: their losses are those that the first version had,
// each backend repeats its own to the bit, and all gradients of the device are the CPU's but for rounding.
#include <cmath>
#include <cstdio>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "common/base/time_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu_backend.h"
#include "kernels/cuda.h"
#include "tests/worker/client/fake_client.h"
#include "tests/worker/data/memory_dataset.h"
#include "worker/model/candidates.h"
#include "worker/model/model.h"
#include "worker/training/batch_pipeline.h"
#include "worker/training/compute.h"
#include "worker/training/parameters.h"

namespace lodestone::worker {
namespace {

using v1::ModelConfig;

constexpr uint64_t kGoldenSeed = 20261122;
constexpr int kGoldenSteps = 10;
constexpr uint64_t kGoldenBatch = 48;
constexpr uint32_t kFields = 3, kNumeric = 4;

struct Case {
  std::string name;
  ModelConfig::Type type = ModelConfig::DEEPFM;
  uint32_t classes = 2;
  std::vector<double> losses;  // Means of the ten batches.
  bool fields = true;          // Whether there are categorical ones.
  void (*change)(ModelConfig* model) = nullptr;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

v1::Config ConfigOf(const Case& c) {
  v1::Config config;
  ModelConfig* const model = config.mutable_model();
  model->set_type(c.type);
  model->set_embedding_dim(5);
  model->add_hidden(17);
  model->add_hidden(8);
  model->add_bottom_hidden(6);
  model->set_numeric_pairs(false);
  if (c.fields) model->set_l2(0.01f);
  model->set_dropout(0.25f);
  model->mutable_optimizer()->mutable_sgd();
  model->mutable_optimizer()->set_learning_rate(0.5);
  model->mutable_embedding()->mutable_initializer()->mutable_normal()->set_stddev(0.3f);
  if (c.change != nullptr) c.change(model);
  return config;
}

// Labels that follow from the first numeric feature and the first field; the fields' values are skewed, so that some
// rows have more features than a chunk takes.
LoadedData DataOf(const Case& c) {
  LoadedData data;
  const bool fields = c.fields;
  data.schema.numeric_count = kNumeric;
  data.schema.field_count = fields ? kFields : 0;
  for (uint32_t k = 0; k < c.classes; ++k) {
    data.schema.class_names.push_back(std::to_string(k));
    data.schema.class_counts.push_back(100);
  }
  if (c.type == ModelConfig::MULTITASK) {
    for (const char* name : {"click", "cart", "conversion"}) {
      data.schema.labels.push_back({name, 100, 50, 100, 50});
      data.schema.description.add_labels()->set_name(name);
    }
  }
  std::vector<MemoryDataset::Sample> samples;
  for (uint64_t i = 0; i < kGoldenSteps * kGoldenBatch; ++i) {
    MemoryDataset::Sample& sample = samples.emplace_back();
    for (uint64_t n = 0; n < kNumeric; ++n) {
      sample.numeric.push_back(static_cast<float>(RandomUniform(kGoldenSeed, 100 * i + n)) * 2 - 1);
    }
    for (uint64_t f = 0; fields && f < kFields; ++f) {
      const uint64_t bits = RandomBits(kGoldenSeed, 100 * i + 50 + f);
      sample.keys.push_back(100 * f + (bits % 4 == 0 ? bits / 4 % 7 : 0));
    }
    const double score = sample.numeric[0] + (fields ? static_cast<double>(sample.keys[0]) / 3 - 0.3 : 0);
    sample.label = static_cast<float>(score < -0.2 ? 0 : score < 0.3 || c.classes == 2 ? 1 : 2);
    if (c.type != ModelConfig::MULTITASK) continue;
    // A label that follows from another number too, and one that every fourth sample lacks.
    sample.labels = {sample.label, sample.label > 0 && sample.numeric[1] > 0 ? 1.0f : 0.0f,
                     i % 4 == 0    ? std::nanf("")
                     : score > 0.3 ? 1.0f
                                   : 0.0f};
  }
  data.train = std::make_unique<MemoryDataset>(std::move(samples));
  for (uint32_t f = 0; f < data.schema.field_count; ++f) {
    data.schema.description.add_categorical()->set_name("f" + std::to_string(f));
  }
  for (uint32_t n = 0; n < kNumeric; ++n) {
    data.schema.description.add_numeric()->set_name("n" + std::to_string(n));
  }
  if (c.type == ModelConfig::TWOTOWER) {
    EXPECT_TRUE(AddCandidates(ConfigOf(c), &data).ok());
  }
  return data;
}

// What ten steps leave.
struct Training {
  std::vector<double> losses;
  std::vector<double> predicted;  // Of the same batches without dropout: each one's loss, then its predictions.
  std::vector<std::vector<float>> gradients;  // Per step and table.
};

absl::StatusOr<Training> Train(const Case& c, kernels::Backend* backend) {
  const v1::Config config = ConfigOf(c);
  const LoadedData data = DataOf(c);
  FakeClient client;
  ManualTime time;
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, Model::Create(config, data.schema, backend));
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<TableHandle> tables, client.EnsureTables(model->tables()));
  const size_t dense_count = model->dense_table_count();
  std::vector<const TableHandle*> dense, rows;
  for (size_t t = 0; t < tables.size(); ++t) (t < dense_count ? dense : rows).push_back(&tables[t]);
  Parameters parameters(&client, dense, {.time = &time});
  LODESTONE_RETURN_IF_ERROR(parameters.Start());
  Compute compute(model.get(), &tables);
  uint64_t at = 0;
  // Nothing ahead, so that every step sees the one before.
  BatchPipeline pipeline(&client, data.train.get(), rows,
                         [&](BatchPipeline::Assignment* batch) {
                           for (uint64_t i = 0; i < kGoldenBatch && at < data.train->size(); ++i)
                             batch->indices.push_back(at++);
                           return !batch->indices.empty();
                         },
                         {.ahead = 0, .backend = backend, .ordered = true, .groups = model->plan().groups});
  // Of twotower the candidates of a batch.
  const auto choices = static_cast<float>(c.type == ModelConfig::TWOTOWER ? kGoldenBatch : c.classes);
  Training run;
  for (int step = 0; step < kGoldenSteps; ++step) {
    LODESTONE_ASSIGN_OR_RETURN(const BatchPipeline::Item* const item, pipeline.Next());
    LODESTONE_RETURN_IF_ERROR(parameters.PullAll());
    compute.StartGradients(*item, parameters, StreamSeed(kGoldenSeed, step));
    LODESTONE_ASSIGN_OR_RETURN(const double loss, compute.FinishGradients());
    EXPECT_THAT(std::vector<float>(compute.predictions(), compute.predictions() + kGoldenBatch),
                testing::Each(testing::AllOf(testing::Ge(0), testing::Lt(choices))));
    run.losses.push_back(loss / kGoldenBatch);
    std::vector<float> predictions(kGoldenBatch, -1.0f);
    LODESTONE_ASSIGN_OR_RETURN(const double predicted, compute.Predict(*item, parameters, predictions.data()));
    run.predicted.push_back(predicted / kGoldenBatch);
    for (const float prediction : predictions) run.predicted.push_back(prediction);
    std::vector<DenseGradient> dense_gradients;
    std::vector<RowGradients> row_gradients;
    for (size_t t = 0; t < tables.size(); ++t) {
      const float* const gradient = compute.gradient(t);
      size_t size = tables[t].layout.elements;
      if (t < dense_count) {
        dense_gradients.push_back({&tables[t], gradient});
      } else {
        const std::vector<Key>& keys = item->keyed.KeysOf(model->plan().groups.OfTable(t - dense_count));
        size = keys.size() * tables[t].dim;
        row_gradients.push_back({&tables[t], keys, gradient});
      }
      run.gradients.emplace_back(gradient, gradient + size);
    }
    LODESTONE_RETURN_IF_ERROR(client.Push(step + 1, dense_gradients, row_gradients, {parameters.versions(), {}},
                                          [](const Client::PushResult&) {}));
    pipeline.Release();
  }
  return run;
}

class GoldenTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override { std::printf("seed %llu\n", static_cast<unsigned long long>(kGoldenSeed)); }

  // The losses as they were. Ten steps pass a rounding error of some 2^-24 for each of about 50 terms on to the next.
  void CheckLosses(const Training& run) {
    constexpr double kTolerance = kGoldenSteps * 50 * 0x1p-24;
    ASSERT_EQ(GetParam().losses.size(), run.losses.size());
    for (int step = 0; step < kGoldenSteps; ++step) {
      EXPECT_NEAR(run.losses[step], GetParam().losses[step], kTolerance) << "step " << step;
    }
  }
  void CheckBits(const Training& run, kernels::Backend* backend) {
    const auto again = Train(GetParam(), backend);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(run.losses, again->losses);
    EXPECT_EQ(run.predicted, again->predicted);
    EXPECT_EQ(run.gradients, again->gradients);
  }
};

TEST_P(GoldenTest, TenStepsOnTheCpu) {
  const auto run = Train(GetParam(), kernels::Cpu());
  ASSERT_TRUE(run.ok()) << run.status();
  CheckLosses(*run);
  CheckBits(*run, kernels::Cpu());
}

TEST_P(GoldenTest, TenStepsOnCuda) {
  const auto cuda = kernels::CreateCuda({});
  if (!cuda.ok()) GTEST_SKIP() << "cuda: " << cuda.status().message();
  const auto run = Train(GetParam(), cuda->get());
  ASSERT_TRUE(run.ok()) << run.status();
  CheckLosses(*run);
  CheckBits(*run, cuda->get());
  const auto cpu = Train(GetParam(), kernels::Cpu());
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  ASSERT_EQ(run->gradients.size(), cpu->gradients.size());
  // As for the losses; a gradient is a sum of fewer than 64 products of total magnitude below 8, in either of the two.
  constexpr double kTolerance = kGoldenSteps * 2 * 64 * 8 * 0x1p-24;
  ASSERT_EQ(run->predicted.size(), cpu->predicted.size());
  for (size_t i = 0; i < run->predicted.size(); ++i) ASSERT_NEAR(run->predicted[i], cpu->predicted[i], kTolerance) << i;
  for (size_t t = 0; t < run->gradients.size(); ++t) {
    ASSERT_EQ(run->gradients[t].size(), cpu->gradients[t].size());
    for (size_t i = 0; i < run->gradients[t].size(); ++i) {
      ASSERT_NEAR(run->gradients[t][i], cpu->gradients[t][i], kTolerance) << "table and step " << t << " element " << i;
    }
  }
}

// With rounded factors, whose copies layers keep from the forward pass for the backward one. Of three steps: roundings
// grow from step to step, but those of a step's own are far below what copies of another step's would do.
TEST_P(GoldenTest, TenStepsOnCudaWithRoundedFactors) {
  for (const kernels::Precision precision : {kernels::Precision::kTf32, kernels::Precision::kBf16}) {
    const auto cuda = kernels::CreateCuda({.precision = precision, .padded_flops_min = 0});
    if (!cuda.ok()) GTEST_SKIP() << "cuda: " << cuda.status().message();
    const auto run = Train(GetParam(), cuda->get());
    ASSERT_TRUE(run.ok()) << run.status();
    CheckBits(*run, cuda->get());
    const double tolerance = precision == kernels::Precision::kBf16 ? 0.01 : 0.002;
    for (int step = 0; step < 3; ++step) {
      EXPECT_NEAR(run->losses[step], GetParam().losses[step], tolerance) << "step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenTest,
                         testing::Values(Case{"DeepFm",
                                              ModelConfig::DEEPFM,
                                              2,
                                              {0.653195208, 0.644759512, 0.693484416, 0.569607943, 0.557347090,
                                               0.558894845, 0.521365454, 0.476317890, 0.463414776, 0.520747450}},
                                         Case{"Dlrm",
                                              ModelConfig::DLRM,
                                              2,
                                              {0.704939517, 0.722257523, 0.702366984, 0.713663138, 0.714611133,
                                               0.727514310, 0.700255677, 0.705677789, 0.693906013, 0.695474574}},
                                         Case{"DlrmSoftmax",
                                              ModelConfig::DLRM,
                                              3,
                                              {1.226025782, 1.102117081, 1.075218104, 1.041677295, 1.096647509,
                                               0.992756088, 0.987256025, 0.959968059, 0.963678099, 1.016573510}},
                                         Case{"Fm",
                                              ModelConfig::FM,
                                              2,
                                              {0.642653966, 0.645007786, 0.669556229, 0.607227727, 0.614902643,
                                               0.567128753, 0.561803176, 0.529164193, 0.523384244, 0.528023635}},
                                         Case{"LinearSoftmax",
                                              ModelConfig::LINEAR,
                                              3,
                                              {1.098612289, 0.960390380, 0.956891574, 0.874350875, 0.950628126,
                                               0.873233244, 0.778818076, 0.724734412, 0.797969339, 0.832229933}},
                                         Case{"MlpSoftmax",
                                              ModelConfig::MLP,
                                              3,
                                              {1.438681235, 1.064003028, 1.119573009, 1.012549181, 0.973898944,
                                               0.955960411, 0.814161407, 0.933869627, 0.909157971, 0.894360750},
                                              false},
                                         Case{"DeepFmNumericPairs",
                                              ModelConfig::DEEPFM,
                                              2,
                                              {0.653937952, 0.643042249, 0.687737354, 0.560389754, 0.546047836,
                                               0.547682873, 0.512992093, 0.458269711, 0.438867057, 0.505004189},
                                              true,
                                              [](ModelConfig* model) { model->set_numeric_pairs(true); }},
                                         Case{"WideDeepL2PerSample",
                                              ModelConfig::WIDEDEEP,
                                              2,
                                              {0.682689582, 0.653471232, 0.670257227, 0.564369749, 0.542594526,
                                               0.573440591, 0.515447661, 0.467497933, 0.454708615, 0.519293198},
                                              true,
                                              [](ModelConfig* model) { model->set_l2_per(ModelConfig::SAMPLE); }},
                                         Case{"WideDeepFieldDims",
                                              ModelConfig::WIDEDEEP,
                                              2,
                                              {0.717677272, 0.674696501, 0.673393121, 0.605008808, 0.578081633,
                                               0.537745822, 0.510444773, 0.466448796, 0.504558595, 0.479502882},
                                              true,
                                              [](ModelConfig* model) {
                                                (*model->mutable_embedding_dims())["f0"] = 9;
                                                (*model->mutable_embedding_dims())["f2"] = 2;
                                              }},
                                         Case{"MlpFields",
                                              ModelConfig::MLP,
                                              3,
                                              {1.297937703, 1.075253785, 1.114718451, 1.000154386, 1.073913941,
                                               1.032344599, 0.961032303, 0.981466301, 1.029650796, 1.040933055}},
                                         Case{"MlpLayerNorm",
                                              ModelConfig::MLP,
                                              2,
                                              {0.758151774, 0.678750495, 0.689228367, 0.549665552, 0.577942127,
                                               0.556282473, 0.522368042, 0.478174189, 0.429577275, 0.581333664},
                                              true,
                                              [](ModelConfig* model) { model->set_layer_norm(true); }},
                                         Case{"Dcn",
                                              ModelConfig::DCN,
                                              2,
                                              {0.686828675, 0.698722046, 0.738394198, 0.647519523, 0.633415898,
                                               0.668947983, 0.561320536, 0.541661170, 0.551459487, 0.538979112}},
                                         Case{"DcnParallelLowRankSoftmax",
                                              ModelConfig::DCN,
                                              3,
                                              {1.170829117, 0.920263337, 1.024765701, 0.749473519, 0.703885201,
                                               0.671230227, 0.551502343, 0.427298701, 0.510848267, 0.550230032},
                                              true,
                                              [](ModelConfig* model) {
                                                model->mutable_cross()->set_rank(4);
                                                model->mutable_cross()->set_structure(v1::CrossConfig::PARALLEL);
                                              }},
                                         Case{"TwoTower",
                                              ModelConfig::TWOTOWER,
                                              2,
                                              {0.769971103, 0.951752269, 1.109663441, 1.042606113, 1.116782584,
                                               0.913354769, 0.713521308, 0.730205112, 0.864080621, 0.740045614},
                                              true,
                                              [](ModelConfig* model) {
                                                v1::TwoTowerConfig& towers = *model->mutable_two_tower();
                                                for (const char* name : {"f0", "n0", "n2"}) towers.add_user(name);
                                                for (const char* name : {"f1", "f2", "n1", "n3"}) towers.add_item(name);
                                                towers.set_dim(6);
                                                towers.set_temperature(1);
                                              }},
                                         Case{"MultitaskSharedBottom",
                                              ModelConfig::MULTITASK,
                                              2,
                                              {1.637985017, 1.665951294, 1.518194991, 1.444200116, 1.527625696,
                                               1.377984666, 1.411659970, 1.317874449, 1.311453369, 1.340341567},
                                              true,
                                              [](ModelConfig* model) {
                                                model->mutable_multitask()->add_tower_hidden(6);
                                                (*model->mutable_multitask()->mutable_loss_weights())["cart"] = 0.5f;
                                              }},
                                         Case{"MultitaskMmoe",
                                              ModelConfig::MULTITASK,
                                              2,
                                              {1.947878196, 1.875711672, 1.872595146, 1.726365287, 1.893731181,
                                               1.635536808, 1.757911686, 1.646332905, 1.623783686, 1.650252382},
                                              true,
                                              [](ModelConfig* model) {
                                                v1::MultitaskConfig& multitask = *model->mutable_multitask();
                                                multitask.set_structure(v1::MultitaskConfig::MMOE);
                                                multitask.set_experts(3);
                                                multitask.add_tower_hidden(6);
                                              }}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace lodestone::worker
