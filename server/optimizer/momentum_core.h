// What momentum and nesterov share. Thread-safe, as optimizers are.
#pragma once

#include "absl/status/status.h"
#include "server/optimizer/update.h"

namespace lodestone::server {

// Base of the methods with one vector of momentum.
class MomentumCore : public Optimizer {
 public:
  StateLayout state_layout() const override { return {.vectors = 1}; }
  void InitializeState(float* state, size_t n) const override;

 protected:
  // `ahead`: steps along the gradient that the momentum will have grown by (Nesterov).
  MomentumCore(float momentum, bool ahead) : momentum_(momentum), ahead_(ahead) {}
  void Run(const Step& step, const UpdateWork& work) const override;

 private:
  const float momentum_;
  const bool ahead_;
};

// INVALID_ARGUMENT, naming the field of optimizer.`method`, if `momentum` is not in [0, 1].
absl::Status CheckMomentum(const char* method, float momentum);

}  // namespace lodestone::server
