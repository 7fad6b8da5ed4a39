#include "server/optimizer/adam.h"

#include "common/base/status.h"
#include "server/optimizer/adam_core.h"

namespace lodestone::server {
namespace {

class Adam final : public AdamCore {
 public:
  explicit Adam(const AdamParameters& parameters) : AdamCore(parameters, /*decoupled=*/false) {}

  const char* name() const override { return "adam"; }
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Optimizer>> CreateAdam(const v1::Adam& config) {
  const AdamParameters parameters{config.beta1(), config.beta2(), config.epsilon()};
  LODESTONE_RETURN_IF_ERROR(CheckAdam("adam", parameters));
  return std::make_unique<const Adam>(parameters);
}

}  // namespace lodestone::server
