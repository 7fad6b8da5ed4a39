#include "server/optimizer/optimizer.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "server/optimizer/adagrad.h"
#include "server/optimizer/adam.h"
#include "server/optimizer/ftrl.h"
#include "server/optimizer/lion.h"
#include "server/optimizer/momentum.h"
#include "server/optimizer/rmsprop.h"
#include "server/optimizer/rowwise_adagrad.h"
#include "server/optimizer/schedule.h"
#include "server/optimizer/sgd.h"

namespace lodestone::server {
namespace {

absl::Status CheckNotNegative(const char* field, float value) {
  if (value >= 0 && std::isfinite(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("optimizer.", field, " must not be negative, is ", value));
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Optimizer>> Optimizer::Create(const v1::Optimizer& config, bool has_rows) {
  if (!std::isfinite(config.learning_rate())) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer.learning_rate must be finite, is ", config.learning_rate()));
  }
  LODESTONE_RETURN_IF_ERROR(CheckNotNegative("weight_decay", config.weight_decay()));
  LODESTONE_RETURN_IF_ERROR(CheckNotNegative("clip.value", config.clip().value()));
  LODESTONE_RETURN_IF_ERROR(CheckNotNegative("clip.row_norm", config.clip().row_norm()));
  LODESTONE_RETURN_IF_ERROR(CheckNotNegative("clip.block_norm", config.clip().block_norm()));
  LODESTONE_RETURN_IF_ERROR(CheckSchedule(config.schedule()));
  switch (config.kind_case()) {
    case v1::Optimizer::kMomentum:
      return CreateMomentum(config.momentum());
    case v1::Optimizer::kNesterov:
      return CreateNesterov(config.nesterov());
    case v1::Optimizer::kAdagrad:
      return CreateAdagrad(config.adagrad());
    case v1::Optimizer::kRmsprop:
      return CreateRmsProp(config.rmsprop());
    case v1::Optimizer::kAdam:
      return CreateAdam(config.adam());
    case v1::Optimizer::kAdamw:
      return CreateAdamW(config.adamw());
    case v1::Optimizer::kFtrl:
      return CreateFtrl(config.ftrl(), config.learning_rate());
    case v1::Optimizer::kLion:
      return CreateLion(config.lion());
    case v1::Optimizer::kRowwiseAdagrad:
      return CreateRowwiseAdagrad(config.rowwise_adagrad(), has_rows);
    case v1::Optimizer::kSgd:
    case v1::Optimizer::KIND_NOT_SET:
      break;
  }
  return CreateSgd(config.sgd());
}

}  // namespace lodestone::server
