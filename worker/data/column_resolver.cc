#include "worker/data/column_resolver.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"

namespace lodestone::worker {
namespace {

bool IsDigits(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

bool ParseColumnIndices(absl::string_view spec, int64_t* first, int64_t* last) {
  if (const size_t dash = spec.find('-', 1); dash != absl::string_view::npos) {
    return IsDigits(spec.substr(0, dash)) && IsDigits(spec.substr(dash + 1)) &&
           absl::SimpleAtoi(spec.substr(0, dash), first) && absl::SimpleAtoi(spec.substr(dash + 1), last);
  }
  if (!IsDigits(spec.substr(spec.substr(0, 1) == "-" ? 1 : 0)) || !absl::SimpleAtoi(spec, first)) return false;
  *last = *first;
  return true;
}

ColumnResolver::ColumnResolver(absl::string_view file, std::vector<std::string> header,
                               std::vector<std::string> plain_names)
    : file_(file),
      header_(std::move(header)),
      plain_names_(std::move(plain_names)),
      columns_(plain_names_.size()),
      roles_(columns_, Role::kNone) {
  for (size_t i = 0; i < header_.size(); ++i) {
    const auto [named, is_new] = named_.try_emplace(header_[i], Named{i});
    if (!is_new) named->second.twice = true;
  }
  for (size_t i = 0; i < header_.size(); ++i) named_.try_emplace(plain_names_[i], Named{i});
}

absl::StatusOr<ColumnResolver::Columns> ColumnResolver::Find(absl::string_view option, const std::string& spec) const {
  Columns found;
  if (const auto named = named_.find(spec); named != named_.end()) {
    if (named->second.twice) {
      return Error(absl::StrCat(option, ": two columns are named \"", spec, "\"; use an index"));
    }
    found.indices.push_back(named->second.index);
    return found;
  }
  int64_t first = 0;
  int64_t last = 0;
  if (!ParseColumnIndices(spec, &first, &last)) {
    return Error(header_.empty()
                     ? absl::StrCat(option, ": there is no column \"", spec, "\", the file has no header")
                     : absl::StrCat(option, ": there is no column \"", spec, "\"; the header has ", HeaderText()));
  }
  const auto columns = static_cast<int64_t>(columns_);
  if (first < 0) first += columns, last += columns;
  if (first < 0 || last >= columns || first > last) {
    return Error(
        absl::StrCat(option, ": there is no column ", spec, "; the file has ", columns_, " columns, counted from 0"));
  }
  found.range = first != last;
  for (int64_t i = first; i <= last; ++i) found.indices.push_back(static_cast<size_t>(i));
  return found;
}

absl::Status ColumnResolver::TakeOne(absl::string_view option, const std::string& spec, Role role,
                                     std::vector<size_t>* taken) {
  LODESTONE_ASSIGN_OR_RETURN(const Columns columns, Find(option, spec));
  for (size_t index : columns.indices) {
    Role& now = roles_[index];
    if (now == Role::kNone) {
      now = role;
      taken->push_back(index);
    } else if (!(columns.range && (now == Role::kLabel || now == Role::kIgnored))) {
      return Error(absl::StrCat(option, ": column \"", spec, "\" is already ", RoleText(now),
                                columns.range ? absl::StrCat(" (index ", index, ")") : ""));
    }
  }
  return absl::OkStatus();
}

absl::string_view ColumnResolver::RoleText(Role role) {
  switch (role) {
    case Role::kLabel:
      return "the label";
    case Role::kNumeric:
      return "numeric";
    case Role::kCategorical:
      return "categorical";
    case Role::kTime:
      return "in csv.datetime";
    case Role::kIgnored:
      return "ignored";
    case Role::kNone:
      break;
  }
  return "unused";
}

std::string ColumnResolver::HeaderText() const {
  constexpr size_t kNamesShown = 20;
  const size_t shown = std::min(header_.size(), kNamesShown);
  return absl::StrCat(absl::StrJoin(header_.begin(), header_.begin() + shown, ", "),
                      shown < header_.size() ? ", ..." : "");
}

}  // namespace lodestone::worker
