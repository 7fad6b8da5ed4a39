// Whole training steps without a parameter server: the batch and its rows go to the device, loss and gradients come
// back. On the CPU nothing is copied. Counted in samples/s; read the time, not the CPU column.
//
//   step_benchmark                    the CPU, and the first CUDA device where there is one
//   step_benchmark --benchmark_filter=cuda
//
// (a) DeepFM and DLRM on click data: 26 categorical and 13 dense features, embeddings of 16, MLP 256-128 and
// 1024-512-256; (b) an MLP 784-512-256-10 for images. A value of a field is one of 100,000, the small ones often.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/buffer.h"
#include "kernels/cpu_backend.h"
#include "kernels/cuda.h"
#include "worker/model/device_batch.h"
#include "worker/model/model.h"

namespace lodestone {
namespace {

using kernels::Backend;
using kernels::Buffer;
using kernels::Memory;
using v1::ModelConfig;

constexpr uint32_t kFields = 26, kNumeric = 13, kDim = 16, kPixels = 784, kClasses = 10;

struct Network {
  std::string name;
  ModelConfig::Type type;
  std::vector<uint32_t> hidden;
};

struct Target {
  std::string name;
  Backend* backend;
  bool ordered;
};

absl::StatusOr<std::unique_ptr<Model>> MakeModel(const Network& network, Backend* backend) {
  v1::Config config;
  ModelConfig* const model = config.mutable_model();
  model->set_type(network.type);
  model->set_embedding_dim(kDim);
  for (const uint32_t width : network.hidden) model->add_hidden(width);
  model->add_bottom_hidden(64);
  const bool image = network.type == ModelConfig::MLP;
  Schema schema;
  schema.numeric_count = image ? kPixels : kNumeric;
  schema.field_count = image ? 0 : kFields;
  for (uint32_t c = 0; c < (image ? kClasses : 2); ++c) {
    schema.class_names.push_back(absl::StrCat(c));
    schema.class_counts.push_back(1);
  }
  return Model::Create(config, schema, backend);
}

KeyedBatch MakeBatch(const Network& network, size_t samples) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> uniform(0, 1);
  const bool image = network.type == ModelConfig::MLP;
  KeyedBatch keyed;
  Batch& batch = keyed.batch;
  batch.size = samples;
  batch.offsets.push_back(0);
  for (size_t s = 0; s < samples; ++s) {
    batch.labels.push_back(static_cast<float>(random() % (image ? kClasses : 2)));
    for (uint32_t i = 0; i < (image ? kPixels : kNumeric); ++i)
      batch.numeric.push_back(static_cast<float>(uniform(random)));
    for (uint32_t f = 0; !image && f < kFields; ++f) {
      batch.keys.push_back(1'000'000 * f + static_cast<Key>(std::pow(100'000.0, uniform(random))));
    }
    batch.offsets.push_back(static_cast<uint32_t>(batch.keys.size()));
  }
  KeyIndexer().Index(&keyed);
  return keyed;
}

// A model's tables and gradients, where the backend and the host have them.
class Step {
 public:
  Step(Model* model, const KeyedBatch& keyed, bool ordered)
      : model_(model),
        backend_(model->backend()),
        keyed_(keyed),
        device_(backend_, ordered, model->tables().size() - model->dense_table_count()),
        loss_(backend_) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, 0.03f);
    loss_.Resize(1);
    for (size_t t = 0; t < model->tables().size(); ++t) {
      const v1::TableSpec& table = model->tables()[t];
      size_t size = keyed.keys.size() * table.embedding().dim();
      if (table.has_dense()) {
        size = 1;
        for (const uint64_t dim : table.dense().dims()) size *= dim;
      }
      Buffer<float>& host = hosts_.emplace_back(backend_, Memory::kHost);
      host.Resize(size);
      for (size_t i = 0; i < size && host.data() != nullptr; ++i) host.data()[i] = normal(random);
      host_gradients_.emplace_back(backend_, Memory::kHost).Resize(size);
      gradients_.emplace_back(backend_).Resize(size);
      if (table.has_dense()) {
        Buffer<float>& dense = dense_.emplace_back(backend_);
        backend_->CopyIn(kernels::Queue::kCompute, size * sizeof(float), host.data(), dense.Resize(size));
      } else {
        row_floats_.push_back(size);
        rows_.push_back(std::move(host));
      }
    }
  }

  absl::Status Run() {
    const size_t dense = dense_.size();
    BatchView view = keyed_.view();
    if (!backend_->on_host()) {
      device_.Pack(keyed_, row_floats_);
      device_.Upload(rows_);
      device_.Await();
      view = device_.view();
    }
    ParameterPointers parameters;
    GradientPointers outputs;
    for (size_t t = 0; t < gradients_.size(); ++t) {
      parameters.push_back(t < dense             ? dense_[t].data()
                           : backend_->on_host() ? rows_[t - dense].data()
                                                 : device_.rows(t - dense));
      outputs.push_back(gradients_[t].data());
    }
    model_->Gradients(view, parameters, 1, outputs, /*predictions=*/nullptr, loss_.data());
    for (size_t t = 0; t < gradients_.size() && !backend_->on_host(); ++t) {
      backend_->CopyOut(gradients_[t].size() * sizeof(float), outputs[t], host_gradients_[t].data());
    }
    return backend_->Finish();
  }

 private:
  Model* const model_;
  Backend* const backend_;
  const KeyedBatch& keyed_;
  DeviceBatch device_;
  std::vector<Buffer<float>> hosts_, dense_, rows_, gradients_, host_gradients_;
  std::vector<size_t> row_floats_;
  Buffer<double> loss_;
};

void BM_Step(benchmark::State& state, const Network& network, const Target& target) {
  const size_t samples = state.range(0);
  const auto model = MakeModel(network, target.backend);
  if (!model.ok()) return state.SkipWithError(model.status().ToString().c_str());
  const KeyedBatch keyed = MakeBatch(network, samples);
  Step step(model->get(), keyed, target.ordered);
  absl::Status status = step.Run();
  for (auto _ : state) {
    if (status.ok()) status = step.Run();
  }
  if (!status.ok()) return state.SkipWithError(status.ToString().c_str());
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * samples));
}

}  // namespace
}  // namespace lodestone

int main(int argc, char** argv) {
  using namespace lodestone;
  benchmark::Initialize(&argc, argv);
  const std::vector<Network> networks = {{"deepfm/256-128", ModelConfig::DEEPFM, {256, 128}},
                                         {"deepfm/1024-512-256", ModelConfig::DEEPFM, {1024, 512, 256}},
                                         {"dlrm/256-128", ModelConfig::DLRM, {256, 128}},
                                         {"dlrm/1024-512-256", ModelConfig::DLRM, {1024, 512, 256}},
                                         {"mlp/512-256", ModelConfig::MLP, {512, 256}}};
  std::vector<Target> targets = {{"cpu", kernels::Cpu(), false}};
  std::vector<std::unique_ptr<Backend>> devices;
  for (const auto& [name, precision] : {std::pair{"cuda/f32", kernels::Precision::kFloat32},
                                        {"cuda/tf32", kernels::Precision::kTf32},
                                        {"cuda/bf16", kernels::Precision::kBf16}}) {
    auto cuda = kernels::CreateCuda({.precision = precision});
    if (!cuda.ok()) {
      std::printf("%s skipped: %s\n", name, cuda.status().ToString().c_str());
      continue;
    }
    devices.push_back(*std::move(cuda));
    targets.push_back({name, devices.back().get(), false});
    if (devices.size() == 1) targets.push_back({"cuda/f32/deterministic", devices.back().get(), true});
  }
  for (const Network& network : networks) {
    const bool image = network.type == ModelConfig::MLP;
    for (const Target& target : targets) {
      // The CPU's larger batches would tell nothing new.
      const int64_t most = target.backend->on_host() ? 1024 : image ? 8192 : 65536;
      auto* const registered =
          benchmark::RegisterBenchmark(absl::StrCat("step/", network.name, "/", target.name).c_str(),
                                       [network, target](benchmark::State& state) { BM_Step(state, network, target); });
      for (int64_t samples = image ? 128 : 1024; samples <= most; samples *= 8) registered->Arg(samples);
      registered->UseRealTime();
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
