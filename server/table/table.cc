#include "server/table/table.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/hash.h"
#include "common/base/limits.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "server/optimizer/clipping.h"
#include "server/optimizer/initializer.h"
#include "server/optimizer/schedule.h"

namespace lodestone::server {
namespace {

absl::Status CheckName(const std::string& name) {
  if (name.empty() || name.size() > limits::kTableNameBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a table's name must have 1 to ", limits::kTableNameBytesMax, " characters, not ", name.size()));
  }
  for (const char c : name) {
    if (!absl::ascii_isalnum(c) && c != '_' && c != '.' && c != '/' && c != '-') {
      return absl::InvalidArgumentError("a table's name may hold only A-Z a-z 0-9 _ . / -");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> CountElements(const v1::TableSpec::Dense& dense) {
  if (dense.dims().empty() || dense.dims_size() > static_cast<int>(limits::kDenseDimsMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a dense table has 1 to ", limits::kDenseDimsMax, " dimensions, not ", dense.dims_size()));
  }
  uint64_t elements = 1;
  for (const uint64_t dim : dense.dims()) {
    if (dim == 0) return absl::InvalidArgumentError("a dimension is 0");
    if (dim > limits::kDenseElementsMax / elements) {
      return absl::InvalidArgumentError(absl::StrCat("more than ", limits::kDenseElementsMax, " elements"));
    }
    elements *= dim;
  }
  if (dense.block_elements() > limits::kBlockElementsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("block_elements ", dense.block_elements(), " is over the limit of ", limits::kBlockElementsMax));
  }
  return elements;
}

absl::Status CheckEmbedding(const v1::TableSpec::Embedding& embedding) {
  if (embedding.dim() == 0 || embedding.dim() > limits::kEmbeddingDimMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("dim must be 1 to ", limits::kEmbeddingDimMax, ", not ", embedding.dim()));
  }
  const float probability = embedding.admission().probability();
  if (!(probability >= 0 && probability <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("admission.probability ", probability, " is not in [0, 1]"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Table>> Table::Create(const v1::TableSpec& spec, uint64_t cluster_seed,
                                                     uint32_t shards) {
  LODESTONE_RETURN_IF_ERROR(CheckName(spec.name()));
  const std::string context = absl::StrCat("table `", spec.name(), "`");
  auto table = std::unique_ptr<Table>(new Table);
  table->id_ = TableIdOf(spec.name());
  table->spec_ = spec;
  table->shards_ = shards;
  table->seed_ = StreamSeed(cluster_seed, StableHash(spec.name()));
  auto optimizer = Optimizer::Create(spec.optimizer());
  if (!optimizer.ok()) return Annotate(optimizer.status(), absl::StrCat(context, ": optimizer"));
  table->optimizer_ = *std::move(optimizer);
  LODESTONE_RETURN_IF_ERROR(Annotate(CheckInitializer(spec.initializer()), absl::StrCat(context, ": initializer")));
  table->state_layout_ = table->optimizer_->state_layout();
  if (spec.has_dense()) {
    auto elements = CountElements(spec.dense());
    if (!elements.ok()) return Annotate(elements.status(), context);
    const uint32_t configured = spec.dense().block_elements();
    table->layout_ = {*elements, configured > 0 ? configured : DefaultBlockElements(*elements, shards)};
    if ((*elements - 1) / table->layout_.block_elements >= UINT32_MAX) {
      return absl::InvalidArgumentError(absl::StrCat(context, ": more than 2^32 blocks; raise block_elements"));
    }
    table->fan_out_ = spec.dense().dims_size() > 1 ? spec.dense().dims(spec.dense().dims_size() - 1) : 1;
    table->fan_in_ = *elements / table->fan_out_;
  } else if (spec.has_embedding()) {
    LODESTONE_RETURN_IF_ERROR(Annotate(CheckEmbedding(spec.embedding()), context));
    if (spec.initializer().has_xavier() || spec.initializer().has_he()) {
      return absl::InvalidArgumentError(
          absl::StrCat(context, ": initializer xavier and he are for dense tables; use uniform or normal"));
    }
    table->dim_ = spec.embedding().dim();
  } else {
    return absl::InvalidArgumentError(absl::StrCat(context, " is neither dense nor embedding"));
  }
  return table;
}

std::string Table::ShapeText() const {
  if (!is_dense()) return absl::StrCat("embedding dim ", dim_);
  return absl::StrCat("dense [", absl::StrJoin(spec_.dense().dims(), ", "), "]");
}

void Table::InitializeDense(uint64_t first, size_t n, float* dst) const {
  InitializeValues(spec_.initializer(), seed_, 0, first, n, fan_in_, fan_out_, dst);
}

void Table::InitializeRow(Key key, float* dst) const {
  InitializeValues(spec_.initializer(), seed_, key, 0, dim_, 1, dim_, dst);
}

Optimizer::Step Table::StepFor(uint64_t step, ByteView gradient, float norm_max) const {
  const v1::Optimizer& config = spec_.optimizer();
  Optimizer::Step result;
  result.learning_rate = LearningRateAt(config, step);
  result.weight_decay = config.weight_decay();
  result.clip_value = config.clip().value();
  if (norm_max > 0) result.gradient_scale = ScaleToNorm(gradient, result.clip_value, norm_max);
  return result;
}

float Table::ScaleToNorm(ByteView gradient, float clip_value, float norm_max) {
  const double norm = GradientNorm(gradient, clip_value);
  return norm > norm_max ? static_cast<float>(norm_max / norm) : 1.0f;
}

}  // namespace lodestone::server
