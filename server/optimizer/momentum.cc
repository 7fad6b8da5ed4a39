#include "server/optimizer/momentum.h"

#include "common/base/status.h"
#include "server/optimizer/momentum_core.h"

namespace lodestone::server {
namespace {

class Momentum final : public MomentumCore {
 public:
  explicit Momentum(float momentum) : MomentumCore(momentum, /*ahead=*/false) {}

  const char* name() const override { return "momentum"; }
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Optimizer>> CreateMomentum(const v1::Momentum& config) {
  LODESTONE_RETURN_IF_ERROR(CheckMomentum("momentum", config.momentum()));
  return std::make_unique<const Momentum>(config.momentum());
}

}  // namespace lodestone::server
