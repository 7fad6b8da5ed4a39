// Whole training steps in one process, without a server: what a worker computes, with the parameters in plain arrays
// and the server's optimizers applied to them at once. It is what the servers' part of a step is measured against.
//
// The data are random, drawn once: batches that are gone through in turn, on fields of a fixed number of values.
// torch_step.py does the same with PyTorch.
//
// Not thread-safe. Works on one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/config.pb.h"
#include "server/optimizer/optimizer.h"
#include "worker/aligned_vector.h"
#include "worker/model/keyed_batch.h"
#include "worker/model/model.h"

namespace lodestone::bench {

class LocalTraining {
 public:
  // `model` is "deepfm/256-128" (type and hidden layers; deepfm, dlrm or mlp), `optimizer` "adagrad" or "sgd".
  // INVALID_ARGUMENT, naming what is wrong.
  static absl::StatusOr<std::unique_ptr<LocalTraining>> Create(const std::string& model, size_t batch_size,
                                                               const std::string& optimizer);

  // One step: count the batch's keys, gather their rows, gradients of everything, updates of everything. Returns the
  // sum of the samples' losses before it.
  double Step();
  // The matrix products of one step's layers, on memory of their own, and nothing else.
  void Products();

 private:
  // One table. A row of an embedding table is its values and then their state, as in the server's pages.
  struct Table {
    AlignedFloats values;
    AlignedFloats state;  // Of a dense table.
    size_t row_floats = 0;
    AlignedFloats rows;  // Those of the batch's keys, [keys, dim].
    AlignedFloats gradient;
  };
  // One matrix product, [m, k] times [k, n].
  struct Product {
    bool transpose_a = false;
    bool transpose_b = false;
    size_t m = 0, n = 0, k = 0;
    const float* a = nullptr;
    const float* b = nullptr;
    float* c = nullptr;
  };

  LocalTraining(const v1::Config& config, std::unique_ptr<Model> model, std::unique_ptr<const Optimizer> optimizer,
                size_t batch_size);
  void AddTable(const v1::TableSpec& spec);
  void DrawBatch(uint64_t index, size_t size, Batch* batch) const;
  void AddProducts(const std::vector<DenseLayer>& layers, size_t batch_size, bool input_gradient);
  const float* NewMatrix(size_t elements);
  void GatherRows(const KeyedBatch& batch, size_t dim, Table* table);
  void Update(const KeyedBatch& batch);

  const Optimizer::Step step_;
  const std::unique_ptr<Model> model_;
  const std::unique_ptr<const Optimizer> optimizer_;
  std::vector<Table> tables_;  // Beside model_->tables().
  std::vector<KeyedBatch> batches_;
  size_t steps_ = 0;

  KeyIndexer indexer_;
  ParameterPointers parameters_;
  GradientPointers gradients_;
  std::vector<RowUpdate> updates_;

  std::vector<std::unique_ptr<AlignedFloats>> matrices_;  // Of products_.
  std::vector<Product> products_;
};

}  // namespace lodestone::bench
