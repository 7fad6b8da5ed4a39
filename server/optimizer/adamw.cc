#include "server/optimizer/adamw.h"

#include "common/base/status.h"
#include "server/optimizer/adam_core.h"

namespace lodestone::server {
namespace {

class AdamW final : public AdamCore {
 public:
  explicit AdamW(const AdamParameters& parameters) : AdamCore(parameters, /*decoupled=*/true) {}

  const char* name() const override { return "adamw"; }
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Optimizer>> CreateAdamW(const v1::AdamW& config) {
  const AdamParameters parameters{config.beta1(), config.beta2(), config.epsilon()};
  LODESTONE_RETURN_IF_ERROR(CheckAdam("adamw", parameters));
  return std::make_unique<const AdamW>(parameters);
}

}  // namespace lodestone::server
