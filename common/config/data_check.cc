#include "common/config/data_check.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/config/field_range.h"

namespace lodestone {
namespace {

using Problems = std::vector<ConfigProblem>;

template <typename Strings>
void CheckNonEmpty(const Strings& strings, const std::string& path, Problems* problems) {
  for (int i = 0; i < strings.size(); ++i) {
    if (strings.Get(i).empty()) problems->push_back({absl::StrCat(path, "[", i, "]"), "must not be empty"});
  }
}

// Whether it cannot be a range of columns, "3-5".
bool NamesOneColumn(const std::string& column) {
  const size_t dash = column.find('-');
  const auto has_digits_only = [](std::string_view text) {
    return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isdigit(c); });
  };
  const std::string_view text = column;
  return dash == std::string::npos || !has_digits_only(text.substr(0, dash)) || !has_digits_only(text.substr(dash + 1));
}

// The columns of several labels.
void CheckLabels(const v1::CsvConfig& csv, bool multitask, Problems* problems) {
  CheckNonEmpty(csv.labels(), "data.csv.labels", problems);
  if (multitask && csv.labels().empty()) {
    problems->push_back({"data.csv.labels",
                         "must name the labels' columns for model.type: multitask, such as [click, "
                         "conversion]"});
  }
  if (csv.labels().empty()) return;
  if (!multitask) {
    problems->push_back(
        {"data.csv.labels", "is for model.type: multitask; other models have one label, data.csv.label"});
  }
  if (static_cast<size_t>(csv.labels_size()) > limits::kLabelsMax) {
    problems->push_back({"data.csv.labels", absl::StrCat("names ", csv.labels_size(), " columns, and a model takes ",
                                                         limits::kLabelsMax, " labels at most")});
  }
  if (csv.labels_size() == 1 && !csv.labels(0).empty() && NamesOneColumn(csv.labels(0))) {
    problems->push_back({"data.csv.labels", "names one column: take data.csv.label, or name several"});
  }
  // A configuration that was printed has the default.
  if (csv.label() != v1::CsvConfig::default_instance().label()) {
    problems->push_back({"data.csv.label", "must not be set beside data.csv.labels, which names all labels"});
  }
}

// A column may have one role. `needs_label`: there has to be a column of labels.
void CheckColumns(const v1::CsvConfig& csv, bool needs_label, Problems* problems) {
  CheckNonEmpty(csv.numeric(), "data.csv.numeric", problems);
  CheckNonEmpty(csv.categorical(), "data.csv.categorical", problems);
  CheckNonEmpty(csv.ignore(), "data.csv.ignore", problems);
  CheckNonEmpty(csv.missing_indicator(), "data.csv.missing_indicator", problems);
  std::map<std::string, std::string> roles;
  const auto claim = [&](const std::string& column, const std::string& path) {
    const auto [first, is_new] = roles.emplace(column, path);
    if (!is_new) problems->push_back({path, absl::StrCat("column `", column, "` is in ", first->second, " already")});
  };
  for (int i = 0; i < csv.labels_size(); ++i) claim(csv.labels(i), absl::StrCat("data.csv.labels[", i, "]"));
  if (!csv.labels().empty()) {
    // There is no other.
  } else if (!csv.label().empty()) {
    claim(csv.label(), "data.csv.label");
  } else if (needs_label) {
    problems->push_back({"data.csv.label", "must not be empty, but with model.type: twotower"});
  }
  for (int i = 0; i < csv.numeric_size(); ++i) claim(csv.numeric(i), absl::StrCat("data.csv.numeric[", i, "]"));
  for (int i = 0; i < csv.categorical_size(); ++i) {
    claim(csv.categorical(i), absl::StrCat("data.csv.categorical[", i, "]"));
  }
  for (int i = 0; i < csv.ignore_size(); ++i) claim(csv.ignore(i), absl::StrCat("data.csv.ignore[", i, "]"));
  const std::map<std::string, v1::MultiColumn> multi(csv.multi().begin(), csv.multi().end());
  for (const auto& [column, settings] : multi) {
    const std::string path = absl::StrCat("data.csv.multi.", column);
    claim(column, path);
    CheckRanges(settings, path, problems);
    if (settings.separator().empty()) problems->push_back({path + ".separator", "must not be empty"});
  }
  const std::map<std::string, v1::DateTimeColumn> times(csv.datetime().begin(), csv.datetime().end());
  for (const auto& [column, settings] : times) {
    const std::string path = absl::StrCat("data.csv.datetime.", column);
    claim(column, path);
    if (settings.age_days() != v1::DateTimeColumn::NONE && settings.age_at().empty()) {
      problems->push_back({path + ".age_days", "needs age_at, the date that ages are counted to"});
    }
  }
}

}  // namespace

void CheckData(const v1::DataConfig& data, v1::ModelConfig::Type model, std::vector<ConfigProblem>* problems) {
  using Data = v1::DataConfig;
  CheckNonEmpty(data.train(), "data.train", problems);
  CheckNonEmpty(data.test(), "data.test", problems);
  CheckNonEmpty(data.train_labels(), "data.train_labels", problems);
  CheckNonEmpty(data.test_labels(), "data.test_labels", problems);
  const std::string format = absl::AsciiStrToLower(Data::Format_Name(data.format()));
  const auto only_for = [&](bool present, const std::string& path, Data::Format wanted) {
    if (!present || data.format() == Data::AUTO || data.format() == wanted) return;
    problems->push_back({path, absl::StrCat("is for data.format ", absl::AsciiStrToLower(Data::Format_Name(wanted)),
                                            " only, and that is ", format)});
  };
  only_for(data.has_csv() && data.format() != Data::PARQUET, "data.csv", Data::CSV);  // Parquet's columns too.
  only_for(data.has_generated(), "data.generated", Data::GENERATED);
  only_for(!data.train_labels().empty(), "data.train_labels", Data::IDX);
  only_for(!data.test_labels().empty(), "data.test_labels", Data::IDX);
  if (data.format() == Data::GENERATED) {
    if (!data.train().empty()) problems->push_back({"data.train", "must be empty where data.format is generated"});
    if (!data.test().empty()) problems->push_back({"data.test", "must be empty where data.format is generated"});
  }
  if (data.read() == Data::SHARE) {
    const bool parts = data.format() != Data::IDX && data.format() != Data::GENERATED;
    if (!parts)
      problems->push_back({"data.read", absl::StrCat("share is for text, Parquet and npy, not for ", format)});
    if (data.test_share() > 0) {
      problems->push_back({"data.read", "share cannot go with data.test_share: name test files in data.test"});
    }
  }
  CheckColumns(data.csv(), /*needs_label=*/model != v1::ModelConfig::TWOTOWER, problems);
  CheckLabels(data.csv(), /*multitask=*/model == v1::ModelConfig::MULTITASK, problems);
}

}  // namespace lodestone
