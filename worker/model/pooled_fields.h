// Fields with several keys as fields with one: in each table the rows of a field's keys are pooled into a row of its
// own, and the terms of a model see a batch whose sample i has the pooled row i * fields + f in its field f. So pooling
// is the same for all of them, and the networks' gradients come back through it.
//
// A mean is a sum with the values that the batch has beside its keys; of the largest, the gradient goes to the first
// key that has it.
//
// Not thread-safe: it keeps scratch memory, in the backend's memory, and what Backward needs of Forward. The backend
// must outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "kernels/scratch_array.h"
#include "worker/model/model_plan.h"
#include "worker/model/term.h"

namespace lodestone::worker {

class PooledFields {
 public:
  // REQUIRES: plan.pooling is not empty.
  PooledFields(const ModelPlan& plan, kernels::Backend* backend);

  // Pools the rows of a batch.
  void Forward(const BatchView& batch, const ParameterPointers& parameters);
  // What the terms get instead of the batch and its parameters; until the next Forward.
  const BatchView& view() const { return view_; }
  const ParameterPointers& parameters() const { return parameters_; }

  // What the terms add their gradients to: dense tables' are `gradients`, row tables' are zeros.
  const GradientPointers& StartBackward(const GradientPointers& gradients);
  // Adds what has been added there to the gradients of the batch's rows. The arguments are those of Forward.
  void Backward(const BatchView& batch, const ParameterPointers& parameters, const GradientPointers& gradients);

 private:
  // The fields that are counted together.
  struct Group {
    size_t fields;
    bool any_max;
    kernels::ScratchArray<uint32_t> is_max;   // [fields]
    kernels::ScratchArray<uint32_t> samples;  // 0, fields, 2 * fields, ...
  };
  // The rows of one table.
  struct Rows {
    size_t dim;
    size_t group;
    kernels::ScratchArray<float> pooled;     // [samples * fields, dim]
    kernels::ScratchArray<float> gradients;  // [samples * fields, dim]
  };

  // Makes the index arrays long enough.
  void Reserve(const BatchView& batch);
  uint32_t* Copied(std::vector<uint32_t> numbers, kernels::ScratchArray<uint32_t>* to);

  // Constant after construction.
  const size_t dense_tables_;
  kernels::Backend* const backend_;

  std::vector<std::vector<uint32_t>> copied_;  // What is queued to be copied must stay.
  kernels::ScratchArray<uint32_t> counting_;   // 0, 1, 2, ...
  std::vector<Group> groups_;
  std::vector<Rows> rows_;                 // By row table.
  kernels::ScratchArray<float> features_;  // [features, dim]: gradients, one by one.
  BatchView view_;
  ParameterPointers parameters_;
  GradientPointers gradients_;
};

}  // namespace lodestone::worker
