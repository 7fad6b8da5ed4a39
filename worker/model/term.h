// A term of a model's logits: logits = the sum of the terms (model_plan.h). A model type is a list of them.
//
// Not thread-safe: a term keeps scratch memory, and what Backward needs of Forward. All pointers are into the memory of
// the backend that it was made for, which must outlive it, and all work is queued there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "worker/model/keyed_batch.h"

namespace lodestone::worker {

// One pointer per table of Model::tables(), in their order: a dense table's elements; of an embedding table the rows of
// the batch's distinct keys, [keys, dim]. All are into the memory of the model's backend.
using ParameterPointers = std::vector<const float*>;
using GradientPointers = std::vector<float*>;

class Term {
 public:
  virtual ~Term() = default;

  // Adds the term to the logits, [samples, outputs]. Dropout, if the term has any, is a function of `dropout_seed`;
  // without one nothing is dropped.
  virtual void Forward(const BatchView& batch, const ParameterPointers& parameters,
                       std::optional<uint64_t> dropout_seed, float* logits) = 0;
  // From dlogits, [samples, outputs]: writes the gradients of the term's dense tables, which are no other term's, and
  // adds to those of its embedding tables. REQUIRES: batch, parameters and seed are those of the last Forward.
  virtual void Backward(const BatchView& batch, const ParameterPointers& parameters, const float* dlogits,
                        const GradientPointers& gradients) = 0;
};

}  // namespace lodestone::worker
