#include "worker/model/dlrm.h"

#include <span>

#include "common/base/random.h"
#include "kernels/scratch_array.h"
#include "worker/model/mlp.h"

namespace lodestone::worker {
namespace {

// The bottom mlp's dropout is another one than the top's.
constexpr uint64_t kBottomStream = 0xb0;

// Vectors that are multiplied by one another: the fields' embeddings and the bottom mlp's output.
size_t InteractionVectors(uint32_t fields) { return size_t{fields} + 1; }
size_t InteractionPairs(uint32_t fields) { return InteractionVectors(fields) * (InteractionVectors(fields) - 1) / 2; }

class InteractionTerm final : public Term {
 public:
  InteractionTerm(const ModelPlan& plan, kernels::Backend* backend)
      : outputs_(plan.outputs),
        fields_(plan.field_count),
        dim_(plan.embedding_dim),
        vectors_count_(InteractionVectors(plan.field_count)),
        width_(plan.mlp[0].in),
        embedding_(plan.TableIndex("embedding")),
        mlp_begin_(plan.TableIndex("mlp/0/weight")),
        bottom_begin_(plan.TableIndex("bottom/0/weight")),
        backend_(backend),
        mlp_(plan.mlp, plan.dropout, backend),
        bottom_(plan.bottom, plan.dropout, backend),
        input_(backend),
        dinput_(backend),
        vectors_(backend),
        dvectors_(backend),
        dbottom_(backend) {}

  void Forward(const BatchView& batch, const ParameterPointers& parameters, std::optional<uint64_t> dropout_seed,
               float* logits) override {
    std::optional<uint64_t> bottom_seed;
    if (dropout_seed) bottom_seed = StreamSeed(*dropout_seed, kBottomStream);
    const float* const bottom = bottom_.Forward(
        batch.size, batch.numeric, std::span(parameters.data() + bottom_begin_, bottom_.tensor_count()), bottom_seed);
    vectors_.Resize(batch.size * vectors_count_ * dim_);
    backend_->CopyColumns(batch.size, dim_, bottom, vectors_count_ * dim_, 0, vectors_.data());
    backend_->GatherFields(batch.sparse(), fields_, dim_, {parameters[embedding_], dim_}, vectors_count_ * dim_, dim_,
                           vectors_.data());
    input_.Resize(batch.size * width_);
    backend_->CopyColumns(batch.size, dim_, bottom, width_, 0, input_.data());
    backend_->DotInteraction(batch.size, vectors_count_, dim_, vectors_.data(), width_, dim_, input_.data());
    const float* const y = mlp_.Forward(batch.size, input_.data(),
                                        std::span(parameters.data() + mlp_begin_, mlp_.tensor_count()), dropout_seed);
    backend_->Axpy(batch.size * outputs_, 1, y, logits);
  }

  void Backward(const BatchView& batch, const ParameterPointers& parameters, const float* dlogits,
                const GradientPointers& gradients) override {
    dinput_.Resize(input_.size());
    mlp_.Backward(batch.size, input_.data(), std::span(parameters.data() + mlp_begin_, mlp_.tensor_count()), dlogits,
                  std::span(gradients.data() + mlp_begin_, mlp_.tensor_count()), dinput_.data());
    dvectors_.Resize(vectors_.size());
    backend_->Fill(dvectors_.size(), 0.0f, dvectors_.data());
    backend_->DotInteractionBackward(batch.size, vectors_count_, dim_, vectors_.data(), width_, dim_, dinput_.data(),
                                     dvectors_.data());
    backend_->ScatterFields(batch.sparse(), fields_, dim_, dvectors_.data(), vectors_count_ * dim_, dim_,
                            {gradients[embedding_], dim_});
    // The bottom's output goes into the mlp by itself and through the products.
    const size_t n = batch.size * dim_;
    dbottom_.Resize(2 * n);
    backend_->ExtractColumns(batch.size, dim_, dinput_.data(), width_, 0, dbottom_.data());
    backend_->ExtractColumns(batch.size, dim_, dvectors_.data(), vectors_count_ * dim_, 0, dbottom_.data() + n);
    backend_->Axpy(n, 1, dbottom_.data() + n, dbottom_.data());
    bottom_.Backward(batch.size, batch.numeric, std::span(parameters.data() + bottom_begin_, bottom_.tensor_count()),
                     dbottom_.data(), std::span(gradients.data() + bottom_begin_, bottom_.tensor_count()), nullptr);
  }

 private:
  // Constant after construction.
  const size_t outputs_;
  const size_t fields_;
  const size_t dim_;
  const size_t vectors_count_;
  const size_t width_;  // Of the top mlp's input.
  const size_t embedding_;
  const size_t mlp_begin_;
  const size_t bottom_begin_;
  kernels::Backend* const backend_;

  // Scratch of the last batch.
  Mlp mlp_;
  Mlp bottom_;
  kernels::ScratchArray<float> input_;     // [samples, width]
  kernels::ScratchArray<float> dinput_;    // [samples, width]
  kernels::ScratchArray<float> vectors_;   // [samples, vectors, dim]: the bottom's output, embeddings
  kernels::ScratchArray<float> dvectors_;  // [samples, vectors, dim]
  kernels::ScratchArray<float> dbottom_;   // [samples, dim], twice
};

}  // namespace

absl::Status PlanDlrm(const v1::ModelConfig& model, const Schema& schema, ModelPlan* plan) {
  const bool fields = schema.field_count > 0;
  if (!fields || schema.numeric_count == 0) {
    return DoesNotFit(model,
                      absl::StrCat(" needs categorical fields and numeric features, the data has ", ContentOf(schema),
                                   schema.sparse ? "; use fm"
                                   : fields      ? "; use deepfm"
                                                 : "; use mlp"));
  }
  const uint32_t dim = model.embedding_dim();
  google::protobuf::RepeatedField<uint32_t> widths = model.bottom_hidden();
  widths.Add(dim);
  plan->bottom = HiddenLayers(schema.numeric_count, widths, model);
  plan->mlp = MlpLayers(dim + InteractionPairs(schema.field_count), model, plan->outputs);
  plan->AddLayers("mlp", plan->mlp);
  plan->AddLayers("bottom", plan->bottom);
  plan->AddEmbedding(dim);
  // The first term, as it always was: another order of sums has other roundings.
  plan->terms.insert(plan->terms.begin(), [](const ModelPlan& of, kernels::Backend* backend) {
    return std::make_unique<InteractionTerm>(of, backend);
  });
  return absl::OkStatus();
}

}  // namespace lodestone::worker
