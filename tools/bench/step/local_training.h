// Whole training steps in one process, without a server: what a worker computes, with the parameters in plain arrays
// and the server's optimizers applied to them at once. It is what the servers' part of a step is measured against.
//
// On a device, only what a worker computes there is there: the batch, its rows and the dense parameters go to it, loss
// and gradients come back, and the optimizers, which are a server's, run on the host.
//
// The data are step_data.h's, drawn once: batches that are gone through in turn, on fields of a fixed number of values.
// torch_step.py does the same with PyTorch.
//
// Not thread-safe. Works on one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cpu_backend.h"
#include "kernels/scratch_array.h"
#include "proto/config.pb.h"
#include "server/optimizer/optimizer.h"
#include "worker/model/device_batch.h"
#include "worker/model/keyed_batch.h"
#include "worker/model/model.h"
#include "worker/training/aligned_vector.h"
#include "worker/training/step_outputs.h"

namespace lodestone::bench {

class LocalTraining {
 public:
  // `model` and `optimizer` as StepConfig takes them. The backend, which must outlive this, computes; `ordered`: its
  // sums come in a fixed order, which costs something on a device. INVALID_ARGUMENT, naming what is wrong with the
  // names; the backend's failure.
  static absl::StatusOr<std::unique_ptr<LocalTraining>> Create(const std::string& model, size_t batch_size,
                                                               const std::string& optimizer,
                                                               kernels::Backend* backend = kernels::Cpu(),
                                                               bool ordered = false);

  // One step, one thing after the other: count the batch's keys, gather their rows, gradients of everything, updates of
  // everything. Returns the sum of the samples' losses before it. All three functions return the backend's failure.
  absl::StatusOr<double> Step();
  // The worker's part alone: from counted batches and gathered rows, in memory that the device can fetch from, to the
  // gradients in the host's memory, with one batch on its way to the device while the one before is computed. No
  // parameter changes. Returns the sum of the losses.
  absl::StatusOr<double> Gradients();
  // The matrix products of one step's layers, on memory of their own, and nothing else.
  absl::Status Products();

 private:
  using Floats = kernels::ScratchArray<float>;

  // One table. A row of an embedding table is its values and then their state, as in the server's pages.
  struct Table {
    Table(kernels::Backend* backend, size_t dim)
        : dim(dim), dense(backend, kernels::Memory::kHost), on_device(backend) {}

    const size_t dim;  // Of an embedding table; 0: it is dense.
    size_t row_floats = 0;
    worker::AlignedFloats rows;   // Of an embedding table: all of them.
    Floats dense;                 // Of a dense table: its values
    worker::AlignedFloats state;  // and their state.
    Floats on_device;             // The dense table there, if the backend is not the host.
  };
  // The rows of a batch's keys, where the computation finds them.
  struct BatchRows {
    std::vector<Floats> host;                     // Of each embedding table, [keys, dim].
    std::unique_ptr<worker::DeviceBatch> device;  // Null if the backend is the host.
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

  LocalTraining(const v1::Config& config, std::unique_ptr<worker::Model> model,
                std::unique_ptr<const server::Optimizer> optimizer, size_t batch_size, bool ordered);
  // Both are false if there is no memory any more; the backend knows why.
  bool AddTable(const v1::TableSpec& spec);
  bool GatherRows(const worker::KeyedBatch& batch, BatchRows* rows);
  BatchRows NewRows();
  // Packs the batch for the device; starts its copy and the rows' there. Nothing to do if the backend is the host.
  static void Pack(const worker::KeyedBatch& batch, BatchRows* rows);
  static void Upload(BatchRows* rows);
  // Loss and gradients of a batch that is, or will be, on the backend. Calls `meanwhile` when all is queued.
  template <typename Meanwhile>
  absl::StatusOr<double> Compute(const worker::KeyedBatch& batch, const BatchRows& rows, const Meanwhile& meanwhile);
  absl::Status PrepareBatches();
  void Update(const worker::KeyedBatch& batch);
  void AddProducts(const std::vector<worker::DenseLayer>& layers, bool input_gradient);
  float* NewMatrix(size_t elements, bool drawn);

  const server::Optimizer::Step step_;
  const std::unique_ptr<worker::Model> model_;
  kernels::Backend* const backend_;
  const std::unique_ptr<const server::Optimizer> optimizer_;
  const size_t batch_size_;
  const bool ordered_;
  std::vector<Table> tables_;  // Beside model_->tables().
  std::vector<worker::KeyedBatch> batches_;
  size_t steps_ = 0;
  bool dense_sent_ = false;  // The device has the dense tables as they are.

  worker::KeyIndexer indexer_;
  BatchRows rows_;  // Of Step.
  worker::StepOutputs outputs_;
  Floats device_outputs_;  // The same there, if the backend is not the host.
  worker::ParameterPointers parameters_;
  worker::GradientPointers gradients_;
  std::vector<server::RowUpdate> updates_;

  std::vector<BatchRows> prepared_;  // Of Gradients, beside batches_; empty before its first call.
  size_t uploaded_ = 0;              // Which of them is there, or on its way.

  std::vector<Floats> matrices_;   // Of products_.
  std::vector<Product> products_;  // Empty before the first call of Products.
};

}  // namespace lodestone::bench
