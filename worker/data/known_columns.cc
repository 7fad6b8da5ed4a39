#include "worker/data/known_columns.h"

#include <optional>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "worker/data/line_parser.h"
#include "worker/data/transform.h"
#include "worker/data/vocabulary.h"

namespace lodestone::worker {
namespace {

// The columns of `layout`, by where they stand among those of one kind, in the order of `known`. By name where both
// have names, otherwise as they come.
template <typename Known, typename IsAt>
absl::StatusOr<std::vector<size_t>> OrderOf(const Known& known, size_t count, const IsAt& is_at, bool by_name,
                                            const std::string& file, const char* kind) {
  if (static_cast<size_t>(known.size()) != count) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": the configuration names ", count, " ", kind,
                                                   " columns, and the model was trained on ", known.size(),
                                                   "; name the same ones in data.csv"));
  }
  std::vector<size_t> order(count);
  for (size_t i = 0; i < count; ++i) {
    size_t at = i;  // Where most files have it.
    if (by_name && !is_at(at, known[static_cast<int>(i)])) {
      for (at = 0; at < count && !is_at(at, known[static_cast<int>(i)]);) ++at;
    }
    if (at == count) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ": the model reads a ", kind, " column \"", known[static_cast<int>(i)].name(),
                       "\", which is not among those that the configuration names in data.csv"));
    }
    order[i] = at;
  }
  return order;
}

// Whether a field of the layout has as many keys as the known column.
absl::Status CheckPooling(const v1::DataDescription::CategoricalColumn& known, const CsvLayout& layout, size_t field,
                          const std::string& file) {
  const MultiRule rule = layout.multi.empty() ? MultiRule() : layout.multi[field];
  const std::string pooling = rule.several ? PoolingName(rule.pooling) : "";
  if (pooling == known.pooling() &&
      (!rule.several || (rule.separator == known.separator() && rule.values_max == known.values_max()))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(file, ": the model was trained with ",
                   known.pooling().empty() ? "one category"
                                           : absl::StrCat("the ", known.pooling(), " of up to ", known.values_max(),
                                                          " categories, separated by ", Quoted(known.separator()), ","),
                   " of ", layout.names[layout.categorical[field]], "; set csv.multi as it was"));
}

// Whether a feature is the known part of a time.
absl::Status CheckTime(const v1::DataDescription::TimePart& known, const TimeRule& rule, const std::string& file,
                       const std::string& column) {
  if (known.part().empty() ? !rule.is_set() : rule == TimeRuleOf(known)) return absl::OkStatus();
  const std::string was = known.part().empty() ? "no date or time"
                                               : absl::StrCat(known.part(), " (format ", known.format(),
                                                              known.part() == PartName(TimeRule::Part::kAgeDays)
                                                                  ? absl::StrCat(", age_at ", TimeText(known.age_at()))
                                                                  : "",
                                                              ")");
  return absl::InvalidArgumentError(
      absl::StrCat(file, ": the model was trained with ", was, " of ", column, "; set csv.datetime as it was"));
}

// Whether the labels are the known ones, in their order, which is that of the model's outputs.
absl::Status CheckLabels(const v1::DataDescription& known, const CsvLayout& layout, const std::string& file) {
  if (known.labels_size() == 0 || layout.labels.empty()) return absl::OkStatus();
  std::vector<std::string> was, is;
  for (const auto& label : known.labels()) was.push_back(label.name());
  for (const size_t column : layout.labels) is.push_back(layout.plain_names[column]);
  const bool by_name = layout.named == known.header();
  if (by_name ? was == is : was.size() == is.size()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      file, ": the model was trained on the labels [", absl::StrJoin(was, ", "), "], and the configuration says [",
      absl::StrJoin(is, ", "), "]; set csv.labels as it was, or start the servers with another server.data_dir"));
}

}  // namespace

absl::Status OtherTransform(absl::string_view file, const std::string& column, const std::string& known,
                            v1::Transform now) {
  return absl::InvalidArgumentError(absl::StrCat(file, ": the model was trained with the transform ", known, " of ",
                                                 column, ", and the configuration says ", TransformName(now),
                                                 "; set data.numeric or csv.transform as it was"));
}

absl::Status CheckIndexed(const v1::DataDescription& known, const v1::CsvConfig& config, const std::string& file,
                          const CsvLayout& layout) {
  if (!layout.named || !known.header()) return absl::OkStatus();
  struct Column {
    const char* option;
    const std::string& named;
    std::optional<size_t> index;
    const std::string& known;
  };
  for (const Column& column : {Column{"csv.label", config.label(), layout.label, known.label()},
                               Column{"csv.group", config.group(), layout.group, known.group()},
                               Column{"csv.weight", config.weight(), layout.weight, known.weight()}}) {
    if (!column.index.has_value() || column.known.empty()) continue;
    const std::string& name = layout.plain_names[*column.index];
    if (name == column.known || name == column.named) continue;
    return absl::InvalidArgumentError(absl::StrCat(file, ": ", column.option, ": ", column.named, " is \"", name,
                                                   "\", and the model was trained with \"", column.known,
                                                   "\"; name the column that is meant"));
  }
  return absl::OkStatus();
}

absl::Status ArrangeAsKnown(const v1::DataDescription& known, const std::string& file, CsvLayout* layout) {
  const bool by_name = layout->named && known.header();
  LODESTONE_RETURN_IF_ERROR(CheckLabels(known, *layout, file));
  const auto is_plain = [](const auto& column) { return !column.has_time() && !column.indicates_missing(); };
  if (layout->numeric_by_default && absl::c_none_of(known.numeric(), is_plain)) {
    // All its features are dates or buckets: numbers that no configuration names are not among them.
    std::erase_if(layout->numeric,
                  [](const auto& column) { return !column.time.is_set() && !column.indicates_missing; });
  }
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<size_t> numeric,
                             OrderOf(
                                 known.numeric(), layout->numeric.size(),
                                 [&](size_t i, const v1::DataDescription::NumericColumn& column) {
                                   return layout->numeric[i].indicates_missing == column.indicates_missing() &&
                                          PartName(layout->numeric[i].time.part) == column.time().part() &&
                                          layout->plain_names[layout->numeric[i].index] == column.name();
                                 },
                                 by_name, file, "numeric"));
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<size_t> categorical,
                             OrderOf(
                                 known.categorical(), layout->categorical.size(),
                                 [&](size_t i, const v1::DataDescription::CategoricalColumn& column) {
                                   return PartName(layout->buckets[i].time.part) == column.time().part() &&
                                          layout->plain_names[layout->categorical[i]] == column.name();
                                 },
                                 by_name, file, "categorical"));
  const CsvLayout before = *layout;
  for (size_t i = 0; i < numeric.size(); ++i) {
    layout->numeric[i] = before.numeric[numeric[i]];
    const v1::DataDescription::NumericColumn& column = known.numeric(static_cast<int>(i));
    if (column.indicates_missing() != layout->numeric[i].indicates_missing) {
      return absl::InvalidArgumentError(absl::StrCat(file, ": the model was trained with ", column.indicates_missing(),
                                                     " as csv.missing_indicator of ",
                                                     layout->names[layout->numeric[i].index], "; set it as it was"));
    }
    LODESTONE_RETURN_IF_ERROR(
        CheckTime(column.time(), layout->numeric[i].time, file, layout->names[layout->numeric[i].index]));
    const std::string& transform = column.transform();
    if (transform == TransformName(layout->numeric[i].transform)) continue;
    return OtherTransform(file, layout->names[layout->numeric[i].index], transform, layout->numeric[i].transform);
  }
  for (size_t i = 0; i < categorical.size(); ++i) {
    const v1::DataDescription::CategoricalColumn& column = known.categorical(static_cast<int>(i));
    layout->categorical[i] = before.categorical[categorical[i]];
    layout->salts[i] = column.salt();
    layout->vocabulary_of[i] = before.vocabulary_of[categorical[i]];
    layout->buckets[i] = before.buckets[categorical[i]];
    layout->buckets[i].counts = false;
    layout->buckets[i].bounds.assign(column.bounds().begin(), column.bounds().end());
    if (!layout->multi.empty()) layout->multi[i] = before.multi[categorical[i]];
    LODESTONE_RETURN_IF_ERROR(CheckPooling(column, *layout, i, file));
    LODESTONE_RETURN_IF_ERROR(CheckVocabulary(column, *layout, i, file));
    LODESTONE_RETURN_IF_ERROR(
        CheckTime(column.time(), layout->buckets[i].time, file, layout->names[layout->categorical[i]]));
    if (BucketName(layout->buckets[i].kind) == column.bucket()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": the model was trained with ", column.bucket().empty() ? "the values" : column.bucket(),
                     " of ", layout->names[layout->categorical[i]], " as categories; set csv.bucket as it was"));
  }
  return absl::OkStatus();
}

}  // namespace lodestone::worker
