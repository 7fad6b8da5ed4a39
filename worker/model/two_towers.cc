#include "worker/model/two_towers.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/random.h"
#include "common/base/status.h"

namespace lodestone::worker {
namespace {

constexpr float kVectorEpsilon = 1e-5f;
// The scores of each sample with each item of the batch, and their gradients, are in memory: 512 MiB.
constexpr uint32_t kCandidatesMax = 8192;

template <typename... Args>
absl::Status TowerError(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat("model.two_tower", args...));
}

// Adds the columns named so to a tower: a category, a number, and what stands beside it.
absl::Status AddColumn(const std::string& name, const char* tower, const v1::DataDescription& data,
                       std::vector<bool>* taken, TowerColumns* to) {
  bool found = false;
  const auto take = [&](size_t place, size_t index, std::vector<size_t>* indices) {
    found = true;
    if ((*taken)[place]) return false;
    (*taken)[place] = true;
    indices->push_back(index);
    return true;
  };
  for (int i = 0; i < data.categorical_size(); ++i) {
    const auto index = static_cast<size_t>(i);
    if (data.categorical(i).name() == name && !take(index, index, &to->fields)) {
      return TowerError(": column \"", name, "\" is named twice, in .", tower, " at last; each is of one tower");
    }
  }
  for (int i = 0; i < data.numeric_size(); ++i) {
    const auto index = static_cast<size_t>(i);
    if (data.numeric(i).name() == name && !take(data.categorical_size() + index, index, &to->numbers)) {
      return TowerError(": column \"", name, "\" is named twice, in .", tower, " at last; each is of one tower");
    }
  }
  if (found) return absl::OkStatus();
  return TowerError(".", tower, ": the data has no feature of a column \"", name, "\"; name it in data.csv too");
}

// Where a tower's columns lie in the vector of all features.
TowerPlan TowerPlanOf(const TowerColumns& columns, const ModelPlan& model) {
  TowerPlan plan;
  const auto add = [&plan](size_t from, size_t count) {
    plan.width += count;
    if (!plan.runs.empty() && plan.runs.back().from + plan.runs.back().columns == from) {
      plan.runs.back().columns += count;
    } else {
      plan.runs.push_back({from, count});
    }
  };
  for (const size_t field : columns.fields) {
    const ColumnRun run = model.FieldColumns(static_cast<uint32_t>(field));
    add(run.from, run.columns);
  }
  for (const size_t number : columns.numbers) add(model.FeatureWidth() - model.numeric_count + number, 1);
  return plan;
}

}  // namespace

absl::StatusOr<TwoTowerColumns> FindTowers(const v1::TwoTowerConfig& config, const Schema& schema) {
  const v1::DataDescription& data = schema.description;
  if (config.user().empty() || config.item().empty()) {
    return TowerError(": name the user's columns in .user and the item's in .item");
  }
  TwoTowerColumns towers;
  std::vector<bool> taken(static_cast<size_t>(data.categorical_size() + data.numeric_size()));
  for (const std::string& name : config.user()) {
    LODESTONE_RETURN_IF_ERROR(AddColumn(name, "user", data, &taken, &towers.user));
  }
  for (const std::string& name : config.item()) {
    LODESTONE_RETURN_IF_ERROR(AddColumn(name, "item", data, &taken, &towers.item));
  }
  for (size_t i = 0; i < taken.size(); ++i) {
    if (taken[i]) continue;
    const auto at = static_cast<int>(i);
    const std::string& name =
        at < data.categorical_size() ? data.categorical(at).name() : data.numeric(at - data.categorical_size()).name();
    return TowerError(": column \"", name,
                      "\" is in neither .user nor .item; name it in one, or leave it out of the data");
  }
  const std::string& first = config.item(0);
  if (towers.item.fields.empty() || data.categorical(static_cast<int>(towers.item.fields[0])).name() != first) {
    return TowerError(".item: the first column, \"", first, "\", names the item, and has to be categorical");
  }
  towers.item_field = towers.item.fields[0];
  if (!data.categorical(static_cast<int>(towers.item_field)).pooling().empty()) {
    return TowerError(".item: the first column, \"", first, "\", names the item, and cannot have several values");
  }
  std::sort(towers.user.fields.begin(), towers.user.fields.end());
  std::sort(towers.item.fields.begin(), towers.item.fields.end());
  std::sort(towers.user.numbers.begin(), towers.user.numbers.end());
  std::sort(towers.item.numbers.begin(), towers.item.numbers.end());
  return towers;
}

absl::Status PlanTwoTower(const v1::Config& config, const Schema& schema, ModelPlan* plan) {
  const v1::ModelConfig& model = config.model();
  const v1::TwoTowerConfig& two_tower = model.two_tower();
  LODESTONE_RETURN_IF_ERROR(CheckFieldsOrNumbers(model, schema));
  LODESTONE_ASSIGN_OR_RETURN(const TwoTowerColumns columns, FindTowers(two_tower, schema));
  if (two_tower.normalize() && two_tower.dim() < 2) return TowerError(".dim: 1 is too little for vectors of length 1");
  if (config.train().batch_size() > kCandidatesMax || config.train().batch_size() < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("train.batch_size: ", config.train().batch_size(),
                     ": twotower compares each sample with each item of its batch, which has 2 to ", kCandidatesMax));
  }
  if (config.data().standardize_label()) {
    return absl::InvalidArgumentError(
        "data.standardize_label: twotower's labels are rewards that weigh the samples; leave it out");
  }
  plan->terms.clear();  // The bias is the same for all items: its table has the model's description only.
  plan->AddEmbedding(model.embedding_dim());
  TwoTowerPlan& towers = plan->two_tower.emplace();
  towers.user = TowerPlanOf(columns.user, *plan);
  towers.item = TowerPlanOf(columns.item, *plan);
  towers.dim = two_tower.dim();
  towers.temperature = two_tower.temperature();
  towers.normalizes = two_tower.normalize();
  for (auto& [tower, name] : {std::pair(&towers.user, "user"), std::pair(&towers.item, "item")}) {
    tower->layers = MlpLayers(tower->width, model, towers.dim);
    plan->AddLayers(name, tower->layers);
  }
  return absl::OkStatus();
}

TwoTowers::Tower::Tower(const TowerPlan& tower, size_t tables_begin, float dropout, kernels::Backend* backend)
    : plan(tower),
      begin(tables_begin),
      mlp(tower.layers, dropout, backend),
      x(backend),
      normalized(backend),
      inverses(backend),
      dvectors(backend),
      dx(backend) {}

TwoTowers::TwoTowers(const ModelPlan& plan, kernels::Backend* backend)
    : dim_(plan.two_tower->dim),
      scale_(1 / (plan.two_tower->temperature * (plan.two_tower->normalizes ? static_cast<float>(dim_) : 1.0f))),
      normalizes_(plan.two_tower->normalizes),
      backend_(backend),
      features_(plan, backend),
      part_(backend),
      dall_(backend),
      products_(backend),
      ones_(backend) {
  towers_.reserve(2);
  towers_.emplace_back(plan.two_tower->user, plan.TableIndex("user/0/weight"), plan.dropout, backend);
  towers_.emplace_back(plan.two_tower->item, plan.TableIndex("item/0/weight"), plan.dropout, backend);
}

void TwoTowers::Take(const Tower& tower, size_t samples, const float* all, float* x) {
  size_t at = 0;
  for (const ColumnRun& run : tower.plan.runs) {
    float* const part = tower.plan.runs.size() == 1 ? x : part_.data();
    backend_->ExtractColumns(samples, run.columns, all, features_.width(), run.from, part);
    if (part != x) backend_->CopyColumns(samples, run.columns, part, tower.plan.width, at, x);
    at += run.columns;
  }
}

void TwoTowers::GiveBack(const Tower& tower, size_t samples, const float* x, float* all) {
  size_t at = 0;
  for (const ColumnRun& run : tower.plan.runs) {
    const float* part = x;
    if (tower.plan.runs.size() > 1) {
      backend_->ExtractColumns(samples, run.columns, x, tower.plan.width, at, part_.data());
      part = part_.data();
    }
    backend_->CopyColumns(samples, run.columns, part, features_.width(), run.from, all);
    at += run.columns;
  }
}

void TwoTowers::Forward(const BatchView& batch, const ParameterPointers& parameters,
                        std::optional<uint64_t> dropout_seed) {
  const float* const all = features_.Gather(batch, parameters);
  part_.Resize(batch.size * features_.width());  // Once, before it is used: what is queued must not lose it.
  for (Tower& tower : towers_) {
    float* const x = tower.x.Resize(batch.size * tower.plan.width);
    Take(tower, batch.size, all, x);
    std::optional<uint64_t> seed;
    if (dropout_seed.has_value()) seed = StreamSeed(*dropout_seed, tower.begin);
    tower.vectors =
        tower.mlp.Forward(batch.size, x, std::span(parameters.data() + tower.begin, tower.mlp.tensor_count()), seed);
    if (!normalizes_) continue;
    float* const normalized = tower.normalized.Resize(batch.size * dim_);
    backend_->Copy(batch.size * dim_, tower.vectors, normalized);
    backend_->LayerNorm(batch.size, dim_, kVectorEpsilon, normalized, tower.inverses.Resize(batch.size));
    tower.vectors = normalized;
  }
}

void TwoTowers::AllScores(size_t samples, float* scores) {
  backend_->MatMul(false, true, samples, samples, dim_, scale_, user(), item(), 0, scores);
}

void TwoTowers::OwnScores(size_t samples, float* scores) {
  const size_t n = samples * dim_;
  backend_->Fill(n, 0.0f, products_.Resize(n));
  backend_->MultiplyAdd(n, user(), item(), products_.data());
  backend_->Fill(dim_, 1.0f, ones_.Resize(dim_));
  backend_->MatMul(false, false, samples, 1, dim_, scale_, products_.data(), ones_.data(), 0, scores);
}

void TwoTowers::Backward(const BatchView& batch, const ParameterPointers& parameters, const float* dscores,
                         const GradientPointers& gradients) {
  const size_t samples = batch.size, n = samples * dim_;
  backend_->MatMul(false, false, samples, dim_, samples, scale_, dscores, item(), 0, towers_[0].dvectors.Resize(n));
  backend_->MatMul(true, false, samples, dim_, samples, scale_, dscores, user(), 0, towers_[1].dvectors.Resize(n));
  float* const dall = dall_.Resize(samples * features_.width());
  for (Tower& tower : towers_) {
    float* const dvectors = tower.dvectors.data();
    if (normalizes_) {
      backend_->LayerNormBackward(samples, dim_, tower.normalized.data(), tower.inverses.data(), dvectors);
    }
    float* const dx = tower.dx.Resize(samples * tower.plan.width);
    tower.mlp.Backward(samples, tower.x.data(), std::span(parameters.data() + tower.begin, tower.mlp.tensor_count()),
                       dvectors, std::span(gradients.data() + tower.begin, tower.mlp.tensor_count()), dx);
    GiveBack(tower, samples, dx, dall);
  }
  features_.Scatter(batch, dall, gradients);
  backend_->Fill(1, 0.0f, gradients[0]);  // The bias.
}

}  // namespace lodestone::worker
