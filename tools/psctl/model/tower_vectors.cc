#include "tools/psctl/model/tower_vectors.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "worker/model/two_towers.h"

namespace lodestone::psctl {
namespace {

bool Pools(const v1::DataDescription& data) {
  return std::any_of(data.categorical().begin(), data.categorical().end(),
                     [](const auto& column) { return !column.pooling().empty(); });
}

}  // namespace

absl::StatusOr<TowerVectors> TowerVectors::Create(std::shared_ptr<const v1::ModelDescription> model,
                                                  const std::string& tower) {
  if (!model->has_two_tower()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tower: the model is of type ", model->type(), ", and only twotower has towers"));
  }
  if (tower != "user" && tower != "item") {
    return absl::InvalidArgumentError(absl::StrCat("--tower: \"", tower, "\" is neither user nor item"));
  }
  if (const std::string& format = model->data().format(); format != "csv" && format != "parquet") {
    return absl::UnimplementedError(absl::StrCat("--tower: the model was trained on ", format,
                                                 " data; only csv and parquet files may lack columns"));
  }
  TowerVectors vectors;
  vectors.is_user_ = tower == "user";
  const auto& names = vectors.is_user_ ? model->two_tower().user() : model->two_tower().item();
  const auto is_own = [&names](const auto& column) {
    return std::find(names.begin(), names.end(), column.name()) != names.end();
  };
  auto own = std::make_shared<v1::ModelDescription>(*model);
  v1::DataDescription& data = *own->mutable_data();
  data.clear_numeric();
  data.clear_categorical();
  for (const auto& column : model->data().numeric()) {
    vectors.own_numbers_.push_back(is_own(column));
    if (is_own(column)) *data.add_numeric() = column;
  }
  for (const auto& column : model->data().categorical()) {
    vectors.own_fields_.push_back(is_own(column));
    if (is_own(column)) *data.add_categorical() = column;
  }
  vectors.pooled_ = Pools(model->data());
  vectors.own_pooled_ = Pools(data);
  vectors.model_ = std::move(model);
  vectors.own_ = std::move(own);
  return vectors;
}

void TowerVectors::Widen(const worker::Batch& own, worker::Batch* all) const {
  *all = worker::Batch();
  all->size = own.size;
  all->labels.assign(own.size, 0.0f);
  all->offsets.assign(1, 0);
  size_t number = 0, field = 0, key = 0;  // Of `own`.
  for (size_t i = 0; i < own.size; ++i) {
    for (const bool is_own : own_numbers_) all->numeric.push_back(is_own ? own.numeric[number++] : 0.0f);
    for (size_t f = 0; f < own_fields_.size(); ++f) {
      size_t count = 1;
      if (own_fields_[f] && own_pooled_) count = own.offsets[field + 1] - own.offsets[field];
      for (size_t k = 0; k < count; ++k) {
        const auto& column = model_->data().categorical(static_cast<int>(f));
        all->keys.push_back(own_fields_[f] ? own.keys[key] : StableHash("", column.salt()));
        if (pooled_) all->values.push_back(own_fields_[f] && !own.values.empty() ? own.values[key] : 1.0f);
        key += own_fields_[f];
      }
      field += own_fields_[f];
      if (pooled_) all->offsets.push_back(static_cast<uint32_t>(all->keys.size()));
    }
    if (!pooled_) all->offsets.push_back(static_cast<uint32_t>(all->keys.size()));
  }
}

const float* TowerVectors::Of(const worker::Model& model) const {
  return is_user_ ? model.towers()->user() : model.towers()->item();
}

float TowerVectors::scale() const {
  const v1::ModelDescription::TwoTower& towers = model_->two_tower();
  const float length = towers.normalize() ? std::sqrt(static_cast<float>(towers.dim())) : 1.0f;
  return 1 / (length * std::sqrt(towers.temperature()));
}

}  // namespace lodestone::psctl
