#include "worker/model/deepfm.h"

#include "common/base/status.h"
#include "worker/model/fm.h"
#include "worker/model/linear.h"
#include "worker/model/mlp_model.h"

namespace lodestone::worker {

absl::Status PlanDeepFm(const v1::ModelConfig& model, const Schema& schema, ModelPlan* plan) {
  LODESTONE_RETURN_IF_ERROR(CheckOneOutput(model, *plan));
  if (schema.field_count == 0) {
    return DoesNotFit(model, absl::StrCat(" needs categorical fields, the data has ",
                                          schema.sparse ? ContentOf(schema) + "; use fm"
                                                        : "numeric features only; name categorical columns, or use "
                                                          "mlp"));
  }
  AddLinearTerms(schema, plan);
  LODESTONE_RETURN_IF_ERROR(AddPairs(model, schema, plan));
  AddMlp(model, schema, plan);
  return absl::OkStatus();
}

}  // namespace lodestone::worker
