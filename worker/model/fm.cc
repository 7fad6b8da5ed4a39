#include "worker/model/fm.h"

#include "common/base/check.h"
#include "common/base/status.h"
#include "kernels/scratch_array.h"
#include "worker/model/linear.h"

namespace lodestone::worker {
namespace {

class PairsTerm : public Term {
 public:
  PairsTerm(const ModelPlan& plan, kernels::Backend* backend)
      : dim_(plan.embedding_dim), rows_(plan.EmbeddingColumns()), backend_(backend), sums_(backend) {}

  void Forward(const BatchView& batch, const ParameterPointers& parameters, std::optional<uint64_t>,
               float* logits) override {
    sums_.Resize(batch.size * dim_);
    backend_->FactorizationMachine(batch.sparse(), dim_, rows_.Of(parameters), sums_.data(), logits);
  }
  void Backward(const BatchView& batch, const ParameterPointers& parameters, const float* dlogits,
                const GradientPointers& gradients) override {
    backend_->FactorizationMachineBackward(batch.sparse(), dim_, rows_.Of(parameters), sums_.data(), dlogits,
                                           rows_.Of(gradients));
  }

 protected:
  const size_t dim_;
  const TableColumns rows_;
  kernels::Backend* const backend_;
  kernels::ScratchArray<float> sums_;  // [samples, dim], s of the last Forward.
};

// With numbers x_j and their vectors u_j, t_d = sum_j x_j u_jd and s_d = sum_f x_f v_fd, the pairs that have a number
// add sum_d (t_d s_d + 1/2 t_d^2) - 1/2 sum_j,d x_j^2 u_jd^2.
class NumericPairsTerm final : public PairsTerm {
 public:
  NumericPairsTerm(const ModelPlan& plan, kernels::Backend* backend)
      : PairsTerm(plan, backend),
        count_(plan.numeric_count),
        numeric_(plan.TableIndex("numeric_embedding")),
        t_(backend),
        terms_(backend),
        wide_(backend),
        squares_(backend),
        vector_squares_(backend),
        ones_(backend) {}

  void Forward(const BatchView& batch, const ParameterPointers& parameters, std::optional<uint64_t> dropout_seed,
               float* logits) override {
    PairsTerm::Forward(batch, parameters, dropout_seed, logits);
    const size_t n = batch.size * dim_;
    const float* const u = parameters[numeric_];
    backend_->MatMul(false, false, batch.size, dim_, count_, 1, batch.numeric, u, 0, t_.Resize(n));
    backend_->Copy(n, sums_.data(), wide_.Resize(n));
    backend_->Axpy(n, 0.5f, t_.data(), wide_.data());
    Multiply(n, t_.data(), wide_.data(), &terms_);
    Multiply(batch.size * count_, batch.numeric, batch.numeric, &squares_);
    Multiply(count_ * dim_, u, u, &vector_squares_);
    backend_->MatMul(false, false, batch.size, dim_, count_, -0.5f, squares_.data(), vector_squares_.data(), 1,
                     terms_.data());
    backend_->Fill(dim_, 1.0f, ones_.Resize(dim_));
    backend_->MatMul(false, false, batch.size, 1, dim_, 1, terms_.data(), ones_.data(), 1, logits);
  }

  // With g = dlogits: dv_f += x_f g t; du_j = x_j g (s + t) - x_j^2 g u_j.
  void Backward(const BatchView& batch, const ParameterPointers& parameters, const float* dlogits,
                const GradientPointers& gradients) override {
    PairsTerm::Backward(batch, parameters, dlogits, gradients);
    const size_t n = batch.size * dim_;
    float* const g = wide_.Resize(n);  // In every column.
    backend_->MatMul(false, false, batch.size, dim_, 1, 1, dlogits, ones_.data(), 0, g);
    Multiply(n, g, t_.data(), &terms_);
    backend_->SparseLinearBackward(batch.sparse(), dim_, terms_.data(), rows_.Of(gradients));
    backend_->Axpy(n, 1, sums_.data(), t_.data());
    Multiply(n, g, t_.data(), &terms_);
    backend_->MatMul(true, false, count_, dim_, batch.size, 1, batch.numeric, terms_.data(), 0, gradients[numeric_]);
    backend_->MatMul(true, false, count_, dim_, batch.size, -1, squares_.data(), g, 0, vector_squares_.data());
    backend_->MultiplyAdd(count_ * dim_, vector_squares_.data(), parameters[numeric_], gradients[numeric_]);
  }

 private:
  void Multiply(size_t n, const float* x, const float* y, kernels::ScratchArray<float>* z) {
    backend_->Fill(n, 0.0f, z->Resize(n));
    backend_->MultiplyAdd(n, x, y, z->data());
  }

  const size_t count_;
  const size_t numeric_;                         // "numeric_embedding".
  kernels::ScratchArray<float> t_;               // [samples, dim]
  kernels::ScratchArray<float> terms_;           // [samples, dim]
  kernels::ScratchArray<float> wide_;            // [samples, dim]
  kernels::ScratchArray<float> squares_;         // [samples, numeric_count]
  kernels::ScratchArray<float> vector_squares_;  // [numeric_count, dim]
  kernels::ScratchArray<float> ones_;            // [dim]
};

}  // namespace

absl::Status AddPairs(const v1::ModelConfig& model, const Schema& schema, ModelPlan* plan) {
  LODESTONE_CHECK(plan->outputs == 1);
  plan->pairs = true;
  plan->AddEmbedding(model.embedding_dim());
  const bool numbers = schema.numeric_count > 0;
  const v1::ModelDescription* const known = schema.continued.get();
  if (numbers && known != nullptr && model.has_numeric_pairs() && model.numeric_pairs() != known->numeric_pairs()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the cluster holds a model ", known->numeric_pairs() ? "with" : "without",
        " factors of numbers; leave model.numeric_pairs away to go on training it, or start the servers with another "
        "server.data_dir"));
  }
  plan->numeric_pairs = numbers && (known != nullptr ? known->numeric_pairs() : model.numeric_pairs());
  if (!plan->numeric_pairs) {
    plan->terms.push_back(
        [](const ModelPlan& of, kernels::Backend* backend) { return std::make_unique<PairsTerm>(of, backend); });
    return absl::OkStatus();
  }
  plan->AddDense("numeric_embedding", {schema.numeric_count, model.embedding_dim()}, SmallNormal());
  plan->terms.push_back(
      [](const ModelPlan& of, kernels::Backend* backend) { return std::make_unique<NumericPairsTerm>(of, backend); });
  return absl::OkStatus();
}

absl::Status PlanFm(const v1::ModelConfig& model, const Schema& schema, ModelPlan* plan) {
  LODESTONE_RETURN_IF_ERROR(CheckOneOutput(model, *plan));
  if (!schema.sparse && schema.field_count == 0) {
    return DoesNotFit(model,
                      " needs categorical or sparse features, the data has numeric ones only; use linear or mlp");
  }
  AddLinearTerms(schema, plan);
  return AddPairs(model, schema, plan);
}

absl::Status PlanMf(const v1::ModelConfig& model, const Schema& schema, ModelPlan* plan) {
  LODESTONE_RETURN_IF_ERROR(CheckOneOutput(model, *plan));
  if (schema.field_count != 2 || schema.numeric_count > 0) {
    return DoesNotFit(model, absl::StrCat(" needs exactly two categorical fields (user and item) and nothing else, "
                                          "the data has ",
                                          ContentOf(schema), "; name two columns in data.csv.categorical, or use fm"));
  }
  AddLinearTerms(schema, plan);
  return AddPairs(model, schema, plan);
}

}  // namespace lodestone::worker
