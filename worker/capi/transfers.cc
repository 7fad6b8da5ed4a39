#include "worker/capi/transfers.h"

#include <memory>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "worker/capi/distinct_keys.h"
#include "worker/capi/handles.h"

namespace lodestone::worker {
namespace {

// What gradients and destinations have in common.
struct Argument {
  const lodestone_table* table = nullptr;
  const uint64_t* keys = nullptr;
  size_t keys_count = 0;
  const float* values = nullptr;
};

// What the arguments of a call that were checked have together.
struct Seen {
  std::set<const lodestone_table*> tables;
  uint64_t keys = 0;
};

absl::Status CheckArgument(const Argument& of, Seen* seen) {
  if (of.table == nullptr) return absl::InvalidArgumentError("a table is NULL");
  const v1::TableSpec& spec = of.table->handle.spec;
  const auto error = [&spec](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("table `", spec.name(), "` ", what));
  };
  if (!seen->tables.insert(of.table).second) return error("comes twice in one call");
  if (spec.has_dense()) {
    if (of.keys != nullptr || of.keys_count > 0) return error("is dense: it has no keys");
    if (of.values == nullptr) return error("comes without values");
    return absl::OkStatus();
  }
  if (of.keys_count > 0 && (of.keys == nullptr || of.values == nullptr)) return error("comes without keys or values");
  if (of.keys_count > limits::kRowsPerBatchMax - seen->keys) {
    return error(absl::StrCat("comes with ", of.keys_count, " keys; at most ", limits::kRowsPerBatchMax,
                              " are allowed for all tables of one call together, repeated ones counted"));
  }
  seen->keys += of.keys_count;
  return absl::OkStatus();
}

// Adds up the gradients of keys that come more than once.
void AddUp(const lodestone_gradients& from, Gradients* out) {
  std::vector<Key>& keys = out->keys.emplace_back();
  std::vector<uint32_t> row;
  FindDistinct({from.keys, from.keys_count}, &keys, &row);
  const size_t dim = from.table->handle.dim;
  const float* values = from.values;
  if (keys.size() < from.keys_count) {
    std::vector<float>& sums = out->sums.emplace_back(keys.size() * dim, 0.0f);
    for (size_t i = 0; i < row.size(); ++i) {
      float* const to = &sums[row[i] * dim];
      for (size_t d = 0; d < dim; ++d) to[d] += from.values[i * dim + d];
    }
    values = sums.data();
  }
  out->rows.push_back({&from.table->handle, keys, values});
}

void ReadOnce(const lodestone_destination& to, Call* call, Destinations* out) {
  const TableHandle* const table = &to.table->handle;
  auto rows = std::make_unique<RepeatedRows>();
  FindDistinct({to.keys, to.keys_count}, &rows->keys, &rows->row);
  if (rows->keys.size() == to.keys_count) {  // They were distinct, and stand in the order that they came in.
    const auto& keys = *call->keys.emplace_back(std::make_unique<std::vector<Key>>(std::move(rows->keys)));
    out->rows.push_back({table, keys, to.values});
    return;
  }
  rows->dim = table->dim;
  rows->destination = to.values;
  rows->values.resize(rows->keys.size() * rows->dim);
  out->rows.push_back({table, rows->keys, rows->values.data()});
  call->repeated.push_back(std::move(rows));
}

}  // namespace

absl::Status TakeGradients(const lodestone_gradients* gradients, size_t count, Gradients* out) {
  Seen seen;
  for (const lodestone_gradients& from : std::span(gradients, count)) {
    LODESTONE_RETURN_IF_ERROR(CheckArgument({from.table, from.keys, from.keys_count, from.values}, &seen));
    const TableHandle* const table = &from.table->handle;
    if (table->spec.has_dense()) {
      out->dense.push_back({table, from.values, (from.flags & LODESTONE_BORROWED) != 0});
    } else if ((from.flags & LODESTONE_DISTINCT_KEYS) != 0) {
      out->rows.push_back({table, {from.keys, from.keys_count}, from.values});
    } else {
      AddUp(from, out);
    }
  }
  return absl::OkStatus();
}

absl::Status TakeDestinations(const lodestone_destination* destinations, size_t count, Call* call, Destinations* out) {
  Seen seen;
  for (const lodestone_destination& to : std::span(destinations, count)) {
    LODESTONE_RETURN_IF_ERROR(CheckArgument({to.table, to.keys, to.keys_count, to.values}, &seen));
    const TableHandle* const table = &to.table->handle;
    if (table->spec.has_dense()) {
      out->dense.push_back({table, to.values});
    } else if ((to.flags & LODESTONE_DISTINCT_KEYS) != 0) {
      const auto& keys = *call->keys.emplace_back(std::make_unique<std::vector<Key>>(to.keys, to.keys + to.keys_count));
      out->rows.push_back({table, keys, to.values});
    } else {
      ReadOnce(to, call, out);
    }
  }
  return absl::OkStatus();
}

}  // namespace lodestone::worker
