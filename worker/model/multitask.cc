#include "worker/model/multitask.h"

#include <algorithm>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/limits.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "kernels/scratch_array.h"
#include "worker/model/features.h"
#include "worker/model/mlp.h"

namespace lodestone::worker {
namespace {

// Each network drops others than the next.
constexpr uint64_t kExpertStream = 0xe0000;
constexpr uint64_t kHeadStream = 0xf0000;
constexpr uint64_t kSharedStream = 0xd0000;  // What comes out of the experts.

// A shared bottom is one expert without gates.
class MultitaskTerm final : public Term {
 public:
  MultitaskTerm(const ModelPlan& plan, kernels::Backend* backend)
      : heads_(plan.outputs),
        gated_(plan.multitask->experts > 0),
        experts_(std::max<size_t>(1, plan.multitask->experts)),
        width_(plan.multitask->shared.back().out),
        dropout_(plan.dropout),
        shared_begin_(plan.TableIndex(gated_ ? "expert/0/0/weight" : "bottom/0/weight")),
        gates_begin_(gated_ ? plan.TableIndex("gate/0/weight") : 0),
        towers_begin_(plan.TableIndex("tower/0/0/weight")),
        backend_(backend),
        features_(plan, backend),
        shared_out_(backend),
        gates_(backend),
        mixed_(backend),
        logits_(backend),
        dlogit_(backend),
        dmixed_(backend),
        dgates_(backend),
        dshared_(backend),
        dx_(backend),
        dx_part_(backend) {
    for (size_t e = 0; e < experts_; ++e) shared_.emplace_back(plan.multitask->shared, dropout_, backend);
    for (size_t k = 0; k < heads_; ++k) towers_.emplace_back(plan.multitask->tower, dropout_, backend);
  }

  void Forward(const BatchView& batch, const ParameterPointers& parameters, std::optional<uint64_t> dropout_seed,
               float* logits) override {
    const size_t n = batch.size * width_;
    dropout_seed_ = dropout_seed;
    x_ = features_.Gather(batch, parameters);
    shared_out_.Resize(experts_ * n);
    for (size_t e = 0; e < experts_; ++e) {
      const float* const out = shared_[e].Forward(batch.size, x_, SharedOf(e, parameters), SeedOf(kExpertStream + e));
      backend_->Copy(n, out, shared_out_.data() + e * n);
    }
    DropShared(experts_ * n, shared_out_.data());
    gates_.Resize(gated_ ? heads_ * batch.size * experts_ : 0);
    mixed_.Resize(gated_ ? heads_ * n : 0);
    logits_.Resize(batch.size * heads_);
    for (size_t k = 0; k < heads_; ++k) {
      if (gated_) {
        float* const gates = gates_.data() + k * batch.size * experts_;
        backend_->MatMul(false, false, batch.size, experts_, features_.width(), 1, x_, parameters[gates_begin_ + k], 0,
                         gates);
        backend_->MixExperts(batch.size, experts_, width_, shared_out_.data(), gates, mixed_.data() + k * n);
      }
      const float* const logit =
          towers_[k].Forward(batch.size, InputOf(k, n), TowerOf(k, parameters), SeedOf(kHeadStream + k));
      backend_->CopyColumns(batch.size, 1, logit, heads_, k, logits_.data());
    }
    backend_->Axpy(batch.size * heads_, 1, logits_.data(), logits);
  }

  void Backward(const BatchView& batch, const ParameterPointers& parameters, const float* dlogits,
                const GradientPointers& gradients) override {
    const size_t n = batch.size * width_;
    float* const dx = features_.has_rows() ? dx_.Resize(batch.size * features_.width()) : nullptr;
    if (dx != nullptr) backend_->Fill(dx_.size(), 0.0f, dx);
    float* const dshared = dshared_.Resize(experts_ * n);
    backend_->Fill(experts_ * n, 0.0f, dshared);
    dlogit_.Resize(batch.size);
    dmixed_.Resize(n);
    for (size_t k = 0; k < heads_; ++k) {
      backend_->ExtractColumns(batch.size, 1, dlogits, heads_, k, dlogit_.data());
      towers_[k].Backward(batch.size, InputOf(k, n), TowerOf(k, parameters), dlogit_.data(), TowerOf(k, gradients),
                          dmixed_.data());
      if (gated_) {
        BackwardGate(k, batch.size, parameters, gradients, dx);
      } else {
        backend_->Axpy(n, 1, dmixed_.data(), dshared);
      }
    }
    DropShared(experts_ * n, dshared);
    for (size_t e = 0; e < experts_; ++e) {
      float* const part = dx == nullptr ? nullptr : dx_part_.Resize(dx_.size());
      shared_[e].Backward(batch.size, x_, SharedOf(e, parameters), dshared + e * n, SharedOf(e, gradients), part);
      if (dx != nullptr) backend_->Axpy(dx_.size(), 1, part, dx);
    }
    if (dx != nullptr) features_.Scatter(batch, dx, gradients);
  }

 private:
  // From dmixed_ to the gradients of head k's gate, of the experts and, unless it is null, of x.
  void BackwardGate(size_t k, size_t samples, const ParameterPointers& parameters, const GradientPointers& gradients,
                    float* dx) {
    const float* const gates = gates_.data() + k * samples * experts_;
    float* const dgates = dgates_.Resize(samples * experts_);
    backend_->MixExpertsBackward(samples, experts_, width_, shared_out_.data(), gates, dmixed_.data(), dgates,
                                 dshared_.data());
    const size_t in = features_.width(), table = gates_begin_ + k;
    backend_->MatMul(true, false, in, experts_, samples, 1, x_, dgates, 0, gradients[table]);
    if (dx != nullptr) {
      backend_->MatMul(false, true, samples, in, experts_, 1, dgates, parameters[table], 1, dx);
    }
  }

  // Mlp drops nothing of its last layer, which here is a hidden one.
  void DropShared(size_t n, float* x) {
    if (dropout_seed_ && dropout_ > 0) backend_->Dropout(n, dropout_, *SeedOf(kSharedStream), x);
  }
  std::optional<uint64_t> SeedOf(uint64_t stream) const {
    if (!dropout_seed_) return std::nullopt;
    return StreamSeed(*dropout_seed_, stream);
  }
  const float* InputOf(size_t k, size_t n) const { return gated_ ? mixed_.data() + k * n : shared_out_.data(); }
  template <typename Pointer>
  std::span<const Pointer> SharedOf(size_t e, const std::vector<Pointer>& tables) const {
    const size_t count = shared_[0].tensor_count();
    return {tables.data() + shared_begin_ + e * count, count};
  }
  template <typename Pointer>
  std::span<const Pointer> TowerOf(size_t k, const std::vector<Pointer>& tables) const {
    const size_t count = towers_[0].tensor_count();
    return {tables.data() + towers_begin_ + k * count, count};
  }

  // Constant after construction.
  const size_t heads_;
  const bool gated_;
  const size_t experts_;
  const size_t width_;  // Of what each expert, or the bottom, makes.
  const float dropout_;
  const size_t shared_begin_;
  const size_t gates_begin_;
  const size_t towers_begin_;
  kernels::Backend* const backend_;

  // Of the last Forward.
  std::optional<uint64_t> dropout_seed_;
  Features features_;
  std::deque<Mlp> shared_;
  std::deque<Mlp> towers_;
  const float* x_ = nullptr;
  kernels::ScratchArray<float> shared_out_;  // [experts, samples, width]
  kernels::ScratchArray<float> gates_;       // [heads, samples, experts]: after the softmax
  kernels::ScratchArray<float> mixed_;       // [heads, samples, width]
  kernels::ScratchArray<float> logits_;      // [samples, heads]
  // Gradients.
  kernels::ScratchArray<float> dlogit_;   // [samples]: of one head
  kernels::ScratchArray<float> dmixed_;   // [samples, width]: of one head
  kernels::ScratchArray<float> dgates_;   // [samples, experts]: of one head
  kernels::ScratchArray<float> dshared_;  // [experts, samples, width]
  kernels::ScratchArray<float> dx_;
  kernels::ScratchArray<float> dx_part_;
};

// The weights of the labels' losses, in their order.
absl::Status PlanLossWeights(const v1::Config& config, MultitaskPlan* plan) {
  const std::vector<std::string>& labels = plan->labels;
  std::vector<std::string> columns(config.data().csv().labels().begin(), config.data().csv().labels().end());
  if (columns.size() != labels.size()) columns.clear();  // One is a range: they are not beside the labels.
  const auto& configured = config.model().multitask().loss_weights();
  std::vector<std::string> named_by(labels.size());
  plan->loss_weights.assign(labels.size(), 1.0f);
  for (const auto& [name, weight] : std::map<std::string, float>(configured.begin(), configured.end())) {
    size_t label = std::find(labels.begin(), labels.end(), name) - labels.begin();
    if (label == labels.size() && !columns.empty()) {
      label = std::find(columns.begin(), columns.end(), name) - columns.begin();
    }
    if (label == labels.size()) {
      return absl::InvalidArgumentError(absl::StrCat("model.multitask.loss_weights: there is no label \"", name,
                                                     "\"; the labels are ", absl::StrJoin(labels, ", ")));
    }
    if (!named_by[label].empty()) {
      return absl::InvalidArgumentError(absl::StrCat("model.multitask.loss_weights: \"", named_by[label], "\" and \"",
                                                     name, "\" are one label, ", labels[label]));
    }
    named_by[label] = name;
    plan->loss_weights[label] = weight;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status PlanMultitask(const v1::Config& whole, const Schema& schema, ModelPlan* plan) {
  const v1::ModelConfig& model = whole.model();
  LODESTONE_RETURN_IF_ERROR(CheckFieldsOrNumbers(model, schema));
  if (model.hidden().empty()) return DoesNotFit(model, " needs hidden layers: name their widths in model.hidden");
  if (schema.labels.size() > limits::kLabelsMax) {
    return DoesNotFit(model, absl::StrCat(" takes ", limits::kLabelsMax, " labels at most, and the samples have ",
                                          schema.labels.size()));
  }
  const v1::MultitaskConfig& config = model.multitask();
  MultitaskPlan& multitask = plan->multitask.emplace();
  for (const LabelStatistics& label : schema.labels) multitask.labels.push_back(label.name);
  LODESTONE_RETURN_IF_ERROR(PlanLossWeights(whole, &multitask));
  if (schema.field_count > 0) plan->AddEmbedding(model.embedding_dim());
  const uint64_t width = plan->FeatureWidth();
  multitask.shared = HiddenLayers(width, model.hidden(), model);
  multitask.tower = HiddenLayers(multitask.shared.back().out, config.tower_hidden(), model);
  multitask.tower.push_back({multitask.tower.empty() ? multitask.shared.back().out : multitask.tower.back().out, 1});
  if (config.structure() == v1::MultitaskConfig::MMOE) {
    multitask.experts = config.experts();
    for (size_t e = 0; e < multitask.experts; ++e) plan->AddLayers(absl::StrCat("expert/", e), multitask.shared);
    for (size_t k = 0; k < multitask.labels.size(); ++k) {
      plan->AddDense(absl::StrCat("gate/", k, "/weight"), {width, multitask.experts}, Xavier());
    }
  } else {
    plan->AddLayers("bottom", multitask.shared);
  }
  for (size_t k = 0; k < multitask.labels.size(); ++k) plan->AddLayers(absl::StrCat("tower/", k), multitask.tower);
  plan->terms.push_back(
      [](const ModelPlan& of, kernels::Backend* backend) { return std::make_unique<MultitaskTerm>(of, backend); });
  return absl::OkStatus();
}

}  // namespace lodestone::worker
