// A sample's features as one vector: its fields' embeddings, field after field, and beside them its numbers.
//
// Not thread-safe: it keeps the vectors, in the backend's memory.
#pragma once

#include <cstddef>

#include "kernels/backend.h"
#include "kernels/scratch_array.h"
#include "worker/model/model_plan.h"
#include "worker/model/term.h"

namespace lodestone::worker {

class Features {
 public:
  // Of the plan's fields, embeddings and numeric features. Without fields the vectors are the batch's own numbers.
  Features(const ModelPlan& plan, kernels::Backend* backend);

  // Of one vector, for data of `schema`.
  static size_t Width(const Schema& schema, uint32_t embedding_dim) {
    return size_t{schema.field_count} * embedding_dim + schema.numeric_count;
  }
  size_t width() const { return fields_ * dim_ + numeric_; }

  // The vectors of a batch, [samples, width]: until the next call, and as long as the batch.
  const float* Gather(const BatchView& batch, const ParameterPointers& parameters);

  // Whether the embeddings' gradient is wanted: there are fields.
  bool has_rows() const { return fields_ > 0; }
  // Adds the gradient with respect to the vectors, [samples, width], to that of table "embedding".
  void Scatter(const BatchView& batch, const float* dx, const GradientPointers& gradients);

 private:
  const size_t fields_;
  const size_t dim_;
  const size_t numeric_;
  const TableColumns embedding_;  // If there are fields.
  kernels::Backend* const backend_;
  kernels::ScratchArray<float> x_;
};

}  // namespace lodestone::worker
