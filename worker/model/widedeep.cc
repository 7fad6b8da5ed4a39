#include "worker/model/widedeep.h"

#include "common/base/status.h"
#include "worker/model/linear.h"
#include "worker/model/mlp_model.h"

namespace lodestone::worker {

absl::Status PlanWideDeep(const v1::ModelConfig& model, const Schema& schema, ModelPlan* plan) {
  LODESTONE_RETURN_IF_ERROR(CheckFieldsOrNumbers(model, schema));
  AddLinearTerms(schema, plan);
  AddMlp(model, schema, plan);
  return absl::OkStatus();
}

}  // namespace lodestone::worker
