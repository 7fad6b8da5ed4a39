// What Adam and AdamW share: bias correction by a count that stands behind the two state vectors. Thread-safe, as
// optimizers are.
#pragma once

#include "absl/status/status.h"
#include "server/optimizer/update.h"

namespace lodestone::server {

// Adam's hyperparameters.
struct AdamParameters {
  float beta1 = 0;
  float beta2 = 0;
  float epsilon = 0;
};

// INVALID_ARGUMENT, naming the field of optimizer.`method`, if they make no sense.
absl::Status CheckAdam(const char* method, const AdamParameters& parameters);

// Base of both.
class AdamCore : public Optimizer {
 public:
  StateLayout state_layout() const override { return {.vectors = 2, .scalars = 1}; }
  void InitializeState(float* state, size_t n) const override;

 protected:
  // `decoupled`: weight decay shrinks the values instead of joining the gradient (AdamW).
  AdamCore(const AdamParameters& parameters, bool decoupled) : parameters_(parameters), decoupled_(decoupled) {}
  void Run(const Step& step, const UpdateWork& work) const override;

 private:
  const AdamParameters parameters_;
  const bool decoupled_;
};

}  // namespace lodestone::server
