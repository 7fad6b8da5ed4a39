// A sample's features as one vector: its fields' embeddings, field after field, those of one width together
// (ModelPlan::groups), and beside them its numbers.
//
// Not thread-safe: it keeps the vectors, in the backend's memory.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/backend.h"
#include "kernels/scratch_array.h"
#include "worker/model/model_plan.h"
#include "worker/model/term.h"

namespace lodestone::worker {

class Features {
 public:
  // Of the plan's fields, embeddings and numeric features. Without fields the vectors are the batch's own numbers.
  Features(const ModelPlan& plan, kernels::Backend* backend);

  size_t width() const { return width_; }

  // The vectors of a batch, [samples, width]: until the next call, and as long as the batch.
  const float* Gather(const BatchView& batch, const ParameterPointers& parameters);

  // Whether the embeddings' gradient is wanted: there are fields.
  bool has_rows() const { return !groups_.empty(); }
  // Adds the gradient with respect to the vectors, [samples, width], to those of the embeddings' tables.
  void Scatter(const BatchView& batch, const float* dx, const GradientPointers& gradients);

 private:
  struct Group {
    size_t fields = 0;
    size_t dim = 0;
    TableColumns rows;
    size_t col = 0;  // Of the first field's first element.
  };

  const size_t width_;
  const size_t numeric_;
  std::vector<Group> groups_;  // Empty if there are no fields.
  kernels::Backend* const backend_;
  kernels::ScratchArray<float> x_;
};

}  // namespace lodestone::worker
