#include "server/optimizer/nesterov.h"

#include "common/base/status.h"
#include "server/optimizer/momentum_core.h"

namespace lodestone::server {
namespace {

class Nesterov final : public MomentumCore {
 public:
  explicit Nesterov(float momentum) : MomentumCore(momentum, /*ahead=*/true) {}

  const char* name() const override { return "nesterov"; }
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Optimizer>> CreateNesterov(const v1::Nesterov& config) {
  LODESTONE_RETURN_IF_ERROR(CheckMomentum("nesterov", config.momentum()));
  return std::make_unique<const Nesterov>(config.momentum());
}

}  // namespace lodestone::server
