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

// What a table's shards keep of its optimizer and of the use of its rows.
struct StateKind {
  v1::Optimizer::KindCase optimizer = v1::Optimizer::kSgd;
  bool evicts = false;

  explicit StateKind(const v1::TableSpec& spec) {
    if (spec.optimizer().kind_case() != v1::Optimizer::KIND_NOT_SET) optimizer = spec.optimizer().kind_case();
    evicts = spec.embedding().eviction().ttl_ms() > 0 || spec.embedding().eviction().rows_max() > 0;
  }
};

absl::StatusOr<std::unique_ptr<const TableSettings>> SettingsOf(const v1::TableSpec& spec) {
  const std::string context = absl::StrCat("table `", spec.name(), "`");
  auto settings = std::make_unique<TableSettings>();
  settings->spec = spec;
  auto optimizer = Optimizer::Create(spec.optimizer(), spec.has_embedding());
  if (!optimizer.ok()) return Annotate(optimizer.status(), absl::StrCat(context, ": optimizer"));
  settings->optimizer = *std::move(optimizer);
  LODESTONE_RETURN_IF_ERROR(Annotate(CheckInitializer(spec.initializer()), absl::StrCat(context, ": initializer")));
  return settings;
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
  table->shards_ = shards;
  table->seed_ = StreamSeed(cluster_seed, StableHash(spec.name()));
  LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<const TableSettings> settings, SettingsOf(spec));
  table->made_ = settings.get();
  table->Use(settings.get());
  table->state_layout_ = settings->optimizer->state_layout();
  {
    MutexLock lock(&table->mu_);
    table->kept_.push_back(std::move(settings));
  }
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
  return absl::StrCat("dense [", absl::StrJoin(made().spec.dense().dims(), ", "), "]");
}

void Table::InitializeDense(uint64_t first, size_t n, float* dst) const {
  InitializeValues(made().spec.initializer(), seed_, 0, first, n, fan_in_, fan_out_, dst);
}

void Table::InitializeRow(Key key, float* dst) const {
  InitializeValues(made().spec.initializer(), seed_, key, 0, dim_, 1, dim_, dst);
}

std::string Table::OtherTable(const v1::TableSpec& wanted) const {
  const v1::TableSpec& spec = made().spec;
  const auto differs = [](const auto& has, const auto& would) { return absl::StrCat(has, ", not ", would); };
  const auto kind = [](const v1::TableSpec& one) {
    return one.has_dense()       ? absl::StrCat("dense [", absl::StrJoin(one.dense().dims(), ", "), "]")
           : one.has_embedding() ? absl::StrCat("embedding dim ", one.embedding().dim())
                                 : std::string("neither dense nor embedding");
  };
  if (kind(spec) != kind(wanted)) return absl::StrCat("it is ", differs(kind(spec), kind(wanted)));
  const uint32_t block_elements = wanted.dense().block_elements();
  if (is_dense() && block_elements > 0 && block_elements != layout_.block_elements) {
    return absl::StrCat("its blocks have ", differs(layout_.block_elements, block_elements), " elements");
  }
  const StateKind has(spec), would(wanted);
  if (has.optimizer != would.optimizer) {
    const auto name = [](v1::Optimizer::KindCase one) {
      return v1::Optimizer::descriptor()->FindFieldByNumber(one)->name();
    };
    return absl::StrCat("its optimizer's state is of ", differs(name(has.optimizer), name(would.optimizer)));
  }
  if (has.evicts != would.evicts) {
    return absl::StrCat("it ", has.evicts ? "keeps" : "does not keep", " the use of its rows, as eviction needs it");
  }
  return "";
}

absl::StatusOr<const TableSettings*> Table::Keep(const v1::TableSpec& spec) const {
  if (const std::string other = OtherTable(spec); !other.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("table `", name(), "` is another one: ", other));
  }
  MutexLock lock(&mu_);
  for (auto kept = kept_.rbegin(); kept != kept_.rend(); ++kept) {  // Usually the newest; each change has a revision.
    if ((*kept)->spec.revision() != spec.revision()) continue;
    if ((*kept)->spec.SerializeAsString() == spec.SerializeAsString()) return kept->get();
  }
  LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<const TableSettings> settings, SettingsOf(spec));
  return kept_.emplace_back(std::move(settings)).get();
}

uint64_t Table::newest_revision() const {
  MutexLock lock(&mu_);
  uint64_t newest = 0;
  for (const auto& kept : kept_) newest = std::max<uint64_t>(newest, kept->spec.revision());
  return newest;
}

Optimizer::Step TableSettings::StepFor(uint64_t step, ByteView gradient, float norm_max, uint64_t delay) const {
  const v1::Optimizer& config = spec.optimizer();
  Optimizer::Step result;
  result.learning_rate = LearningRateAt(config, step);
  if (delay > 1 && spec.consistency().async().rate() == v1::Consistency::Async::BY_DELAY) {
    result.learning_rate /= static_cast<float>(delay);
  }
  result.weight_decay = config.weight_decay();
  result.clip_value = config.clip().value();
  if (norm_max > 0) result.gradient_scale = Table::ScaleToNorm(gradient, result.clip_value, norm_max);
  return result;
}

float Table::ScaleToNorm(ByteView gradient, float clip_value, float norm_max) {
  const double norm = GradientNorm(gradient, clip_value);
  return norm > norm_max ? static_cast<float>(norm_max / norm) : 1.0f;
}

}  // namespace lodestone::server
