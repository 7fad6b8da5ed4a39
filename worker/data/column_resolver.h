// The columns of a file by their names and indices, as a configuration specifies them, and what each is taken for.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status.h"

namespace lodestone::worker {

// Whether `spec` is an index, an index from the end or a range; sets them (last == first but for a range).
bool ParseColumnIndices(absl::string_view spec, int64_t* first, int64_t* last);

// Resolves specifications against one file's columns.
class ColumnResolver {
 public:
  // What a specification of columns names.
  struct Columns {
    std::vector<size_t> indices;
    bool range = false;
  };
  enum class Role { kNone, kLabel, kNumeric, kCategorical, kTime, kIgnored };

  // `header` is empty if there is none; `plain_names`: CsvLayout::plain_names, by which descriptions of models name
  // columns. `file` must outlive it.
  ColumnResolver(absl::string_view file, std::vector<std::string> header, std::vector<std::string> plain_names);
  ColumnResolver(const ColumnResolver&) = delete;
  ColumnResolver& operator=(const ColumnResolver&) = delete;

  // INVALID_ARGUMENT, naming file, option and column, if there is none.
  absl::StatusOr<Columns> Find(absl::string_view option, const std::string& spec) const;

  // Gives the columns of `specs` the role and appends those that got it to *taken. A range leaves out the label and
  // ignored columns. INVALID_ARGUMENT if another one has a role already.
  template <typename Specs>
  absl::Status Take(absl::string_view option, const Specs& specs, Role role, std::vector<size_t>* taken) {
    for (const std::string& spec : specs) LODESTONE_RETURN_IF_ERROR(TakeOne(option, spec, role, taken));
    return absl::OkStatus();
  }

  Role role(size_t index) const { return roles_[index]; }

  absl::Status Error(absl::string_view message) const {
    return absl::InvalidArgumentError(absl::StrCat(file_, ": ", message));
  }

 private:
  struct Named {
    size_t index = 0;
    bool twice = false;  // In the header.
  };

  absl::Status TakeOne(absl::string_view option, const std::string& spec, Role role, std::vector<size_t>* taken);
  static absl::string_view RoleText(Role role);
  std::string HeaderText() const;

  const absl::string_view file_;
  const std::vector<std::string> header_;  // Empty: there is none.
  const std::vector<std::string> plain_names_;
  const size_t columns_;
  // By the header's names, and the plain ones that are none of these. Empty without a header.
  absl::flat_hash_map<absl::string_view, Named> named_;
  std::vector<Role> roles_;
};

}  // namespace lodestone::worker
