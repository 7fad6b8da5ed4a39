#include "worker/data/csv_layout.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/status.h"
#include "worker/data/column_resolver.h"
#include "worker/data/csv_split.h"
#include "worker/data/line_parser.h"
#include "worker/data/number.h"
#include "worker/data/transform.h"
#include "worker/data/vocabulary.h"

namespace lodestone::worker {
namespace {

using Columns = ColumnResolver::Columns;
using Role = ColumnResolver::Role;

bool IsNumber(absl::string_view text) {
  double value;
  return ParseNumber(text, &value);
}

bool NamesColumn(const v1::CsvConfig& config, const std::vector<std::string>& header) {
  const auto named = [&](const std::string& spec) {
    int64_t first, last;
    return !ParseColumnIndices(spec, &first, &last) && std::find(header.begin(), header.end(), spec) != header.end();
  };
  const auto any_key = [&](const auto& map) {
    return std::any_of(map.begin(), map.end(), [&](const auto& entry) { return named(entry.first); });
  };
  const auto any = [&](const auto& specs) { return std::any_of(specs.begin(), specs.end(), named); };
  return (!config.label().empty() && named(config.label())) || (!config.group().empty() && named(config.group())) ||
         (!config.weight().empty() && named(config.weight())) || any(config.labels()) || any(config.numeric()) ||
         any(config.categorical()) || any(config.ignore()) || any(config.missing_indicator()) ||
         any_key(config.bucket()) || any_key(config.transform()) || any_key(config.multi()) ||
         any_key(config.datetime());
}

// Whether one of `specs` names column `index` of `columns` by its index.
template <typename Specs>
bool NamesIndex(const Specs& specs, int64_t index, int64_t columns) {
  return std::any_of(specs.begin(), specs.end(), [&](const std::string& spec) {
    int64_t first, last;
    if (!ParseColumnIndices(spec, &first, &last)) return false;
    return first < 0 ? index == first + columns : first <= index && index <= last;
  });
}

bool HasHeader(const v1::CsvConfig& config, const std::vector<std::string>& first,
               const std::vector<CsvField>& second) {
  if (config.header() != v1::CsvConfig::DETECT) return config.header() == v1::CsvConfig::YES;
  if (NamesColumn(config, first)) return true;
  const auto columns = static_cast<int64_t>(first.size());
  std::vector<std::string> multi;
  for (const auto& entry : config.multi()) multi.push_back(entry.first);
  bool text_over_number = false;
  for (size_t i = 0; i < std::min(first.size(), second.size()); ++i) {
    // A category may look like a number.
    const auto index = static_cast<int64_t>(i);
    if (NamesIndex(config.categorical(), index, columns) || NamesIndex(config.ignore(), index, columns)) continue;
    if (NamesIndex(multi, index, columns)) continue;
    if (!IsNumber(second[i].text)) continue;
    if (IsNumber(first[i])) return false;
    const auto& missing = config.missing();
    const bool is_missing = first[i].empty() || std::find(missing.begin(), missing.end(), first[i]) != missing.end();
    text_over_number = text_over_number || !is_missing;
  }
  return text_over_number;
}

std::vector<std::string> PlainNames(const std::vector<std::string>& header, bool has_header) {
  absl::flat_hash_map<absl::string_view, size_t> counts;
  if (has_header) {
    for (const std::string& name : header) ++counts[name];
  }
  std::vector<std::string> names;
  for (size_t i = 0; i < header.size(); ++i) {
    const bool twice = has_header && counts.at(header[i]) > 1;
    names.push_back(!has_header ? absl::StrCat(i) : twice ? absl::StrCat(header[i], "#", i) : header[i]);
  }
  return names;
}

// The columns that a map has settings of: by name, if they have names, so that they come in one order wherever they
// stand in a file; otherwise by index.
template <typename Settings>
std::vector<size_t> InOrder(const std::map<size_t, Settings>& by_index, const CsvLayout& layout) {
  std::vector<size_t> order;
  for (const auto& entry : by_index) order.push_back(entry.first);
  if (!layout.named) return order;
  const std::vector<std::string>& names = layout.plain_names;
  std::sort(order.begin(), order.end(), [&names](size_t a, size_t b) { return names[a] < names[b]; });
  return order;
}

// Adds the columns of csv.bucket to the categorical ones, in InOrder.
absl::Status AddBuckets(const v1::CsvConfig& config, const ColumnResolver& resolver, CsvLayout* layout) {
  std::map<size_t, v1::CsvConfig::Bucket> buckets;
  for (const auto& entry : config.bucket()) {
    LODESTONE_ASSIGN_OR_RETURN(const Columns named, resolver.Find("csv.bucket", entry.first));
    for (const size_t index : named.indices) {
      const Role role = resolver.role(index);
      if (role != Role::kNone && role != Role::kNumeric) {
        return resolver.Error(
            absl::StrCat("csv.bucket: ", layout->names[index], " is the label, ignored or in csv.categorical already"));
      }
      if (!buckets.emplace(index, entry.second).second) {
        return resolver.Error(absl::StrCat("csv.bucket: ", layout->names[index], " is named twice"));
      }
    }
  }
  layout->buckets.resize(layout->categorical.size());
  for (const size_t index : InOrder(buckets, *layout)) {
    layout->categorical.push_back(index);
    BucketRule& rule = layout->buckets.emplace_back();
    rule.kind = BucketKindOf(buckets.at(index));
    rule.counts = rule.kind == BucketRule::Kind::kQuantiles;
  }
  return absl::OkStatus();
}

// Takes the columns of csv.multi.
absl::StatusOr<std::map<size_t, MultiRule>> TakeMulti(const v1::CsvConfig& config, ColumnResolver* resolver) {
  std::map<size_t, MultiRule> rules;
  for (const auto& entry : config.multi()) {
    std::vector<size_t> taken;
    LODESTONE_RETURN_IF_ERROR(
        resolver->Take("csv.multi", std::vector<std::string>{entry.first}, Role::kCategorical, &taken));
    for (const size_t index : taken) rules.emplace(index, MultiRuleOf(entry.second));
  }
  return rules;
}

// Adds the columns of csv.multi to the categorical ones, in InOrder.
void AddMulti(const std::map<size_t, MultiRule>& rules, CsvLayout* layout) {
  if (rules.empty()) return;
  layout->multi.resize(layout->categorical.size());
  for (const size_t index : InOrder(rules, *layout)) {
    layout->categorical.push_back(index);
    layout->buckets.emplace_back();
    layout->multi.push_back(rules.at(index));
  }
}

// The features of the columns of csv.datetime.
struct Times {
  struct Feature {
    size_t index;
    TimeRule rule;
    v1::Transform transform;
  };
  std::vector<Feature> categories;
  std::vector<Feature> numbers;
};

// Takes the columns of csv.datetime, in InOrder. `transform`: of numbers, unless they have their own.
absl::StatusOr<Times> TakeTimes(const v1::CsvConfig& config, v1::Transform transform, const CsvLayout& layout,
                                ColumnResolver* resolver) {
  std::map<size_t, v1::DateTimeColumn> columns;
  for (const auto& entry : config.datetime()) {
    std::vector<size_t> taken;
    LODESTONE_RETURN_IF_ERROR(
        resolver->Take("csv.datetime", std::vector<std::string>{entry.first}, Role::kTime, &taken));
    for (const size_t index : taken) columns.emplace(index, entry.second);
  }
  Times times;
  for (const size_t index : InOrder(columns, layout)) {
    const v1::DateTimeColumn& column = columns.at(index);
    const size_t before = times.categories.size() + times.numbers.size();
    for (const TimeRule::Part part : kTimeParts) {
      const v1::DateTimeColumn::Feature feature = FeatureOf(column, part);
      if (feature == v1::DateTimeColumn::NONE) continue;
      TimeRule rule{part, column.format(), 0};
      if (part == TimeRule::Part::kAgeDays) {
        if (!ParseTime(column.age_at(), v1::DateTimeColumn::ISO8601, &rule.age_at)) {
          return resolver->Error(
              absl::StrCat("csv.datetime: the age of ", layout.names[index],
                           " needs age_at, a date or time as ISO 8601 that ages are counted to, and \"",
                           column.age_at(), "\" is none"));
        }
        rule.age_at = std::floor(rule.age_at);
      }
      const v1::Transform own = ResolveTransform(column.transform(), transform);
      (feature == v1::DateTimeColumn::CATEGORY ? times.categories : times.numbers).push_back({index, rule, own});
    }
    if (times.categories.size() + times.numbers.size() == before) {
      return resolver->Error(absl::StrCat("csv.datetime: ", layout.names[index],
                                          " has no feature: set hour, weekday or "
                                          "age_days, or put it into csv.ignore"));
    }
  }
  return times;
}

// Adds those that are categories.
void AddTimes(const Times& times, CsvLayout* layout) {
  for (const Times::Feature& feature : times.categories) {
    layout->categorical.push_back(feature.index);
    BucketRule& rule = layout->buckets.emplace_back();
    rule.kind = BucketRule::Kind::kTime;
    rule.time = feature.rule;
    if (!layout->multi.empty()) layout->multi.emplace_back();
  }
}

// Adds a number beside each numeric column of csv.missing_indicator, behind all of them, in their order.
absl::Status AddIndicators(const v1::CsvConfig& config, const ColumnResolver& resolver, CsvLayout* layout) {
  std::set<size_t> indicated;
  for (const std::string& spec : config.missing_indicator()) {
    LODESTONE_ASSIGN_OR_RETURN(const Columns named, resolver.Find("csv.missing_indicator", spec));
    for (const size_t index : named.indices) {
      const bool is_numeric =
          std::any_of(layout->numeric.begin(), layout->numeric.end(),
                      [&](const CsvLayout::NumericColumn& column) { return column.index == index; });
      if (is_numeric) {
        indicated.insert(index);
      } else if (!named.range) {
        return resolver.Error(absl::StrCat("csv.missing_indicator: \"", spec, "\" is not numeric"));
      }
    }
  }
  const std::vector<CsvLayout::NumericColumn> numbers = layout->numeric;
  for (const CsvLayout::NumericColumn& column : numbers) {
    if (indicated.contains(column.index)) layout->numeric.push_back({column.index, v1::NONE, true, {}});
  }
  return absl::OkStatus();
}

// Takes the columns of csv.labels. Where they are optional they are not read, and those that the file lacks are left
// out.
absl::Status TakeLabels(const v1::CsvConfig& config, ColumnResolver* resolver, CsvLayout* layout) {
  std::vector<std::string> specs(config.labels().begin(), config.labels().end());
  if (layout->label_optional && layout->named) {
    const std::vector<std::string>& names = layout->plain_names;
    std::erase_if(specs, [&names](const std::string& spec) {
      return std::find(names.begin(), names.end(), spec) == names.end();
    });
  }
  std::vector<size_t> labels;
  LODESTONE_RETURN_IF_ERROR(resolver->Take("csv.labels", specs, Role::kLabel, &labels));
  if (layout->label_optional) return absl::OkStatus();
  if (labels.size() < 2) return resolver->Error("csv.labels names one column: take csv.label, or name several");
  layout->labels = std::move(labels);
  return absl::OkStatus();
}

absl::Status AssignRoles(const v1::CsvConfig& config, v1::Transform transform, ColumnResolver* resolver,
                         CsvLayout* layout, std::vector<size_t>* numeric, Times* times) {
  std::vector<size_t> label;
  const std::vector<std::string>& names = layout->plain_names;
  if (!config.labels().empty()) {
    layout->label.reset();
    LODESTONE_RETURN_IF_ERROR(TakeLabels(config, resolver, layout));
  } else if (config.label().empty()) {
    layout->label.reset();
    layout->unlabelled = true;
  } else if (layout->label_optional && layout->named &&
             std::find(names.begin(), names.end(), config.label()) == names.end()) {
    layout->label.reset();
  } else {
    LODESTONE_RETURN_IF_ERROR(
        resolver->Take("csv.label", std::vector<std::string>{config.label()}, Role::kLabel, &label));
    if (label.size() != 1) return resolver->Error("csv.label has to be one column");
    layout->label = label[0];
  }
  if (!config.group().empty()) {
    LODESTONE_ASSIGN_OR_RETURN(const Columns group, resolver->Find("csv.group", config.group()));
    if (group.indices.size() != 1) return resolver->Error("csv.group has to be one column");
    layout->group = group.indices[0];
  }
  if (!config.weight().empty()) {
    LODESTONE_ASSIGN_OR_RETURN(const Columns weight, resolver->Find("csv.weight", config.weight()));
    if (weight.indices.size() != 1) return resolver->Error("csv.weight has to be one column");
    layout->weight = weight.indices[0];
    const auto& labels = layout->labels;
    if (layout->weight == layout->label || std::find(labels.begin(), labels.end(), *layout->weight) != labels.end()) {
      return resolver->Error(absl::StrCat("csv.weight: ", layout->names[*layout->weight], " is the label"));
    }
  }
  std::vector<size_t> ignored;
  LODESTONE_RETURN_IF_ERROR(resolver->Take("csv.ignore", config.ignore(), Role::kIgnored, &ignored));
  LODESTONE_RETURN_IF_ERROR(
      resolver->Take("csv.categorical", config.categorical(), Role::kCategorical, &layout->categorical));
  LODESTONE_RETURN_IF_ERROR(resolver->Take("csv.numeric", config.numeric(), Role::kNumeric, numeric));
  LODESTONE_ASSIGN_OR_RETURN(const auto multi, TakeMulti(config, resolver));
  LODESTONE_ASSIGN_OR_RETURN(*times, TakeTimes(config, transform, *layout, resolver));
  layout->numeric_by_default = config.categorical().empty() && config.numeric().empty() && multi.empty();
  for (size_t i = 0; layout->numeric_by_default && i < layout->names.size(); ++i) {
    if (resolver->role(i) == Role::kNone && layout->group != i && layout->weight != i) numeric->push_back(i);
  }
  LODESTONE_RETURN_IF_ERROR(AddBuckets(config, *resolver, layout));
  AddMulti(multi, layout);
  AddTimes(*times, layout);
  if (numeric->empty() && layout->categorical.empty() && times->numbers.empty()) {
    return resolver->Error(
        absl::StrCat("no feature columns among its ", layout->names.size(), " columns; is csv.delimiter right?"));
  }
  return absl::OkStatus();
}

// Fills all but the delimiter. `header` has the columns' names, if layout->named; else they are of no use.
absl::Status FindRoles(const v1::CsvConfig& config, v1::Transform transform, absl::string_view file,
                       std::vector<std::string> header, CsvLayout* layout) {
  layout->missing.assign(config.missing().begin(), config.missing().end());
  const size_t columns = header.size();
  for (size_t i = 0; i < columns; ++i) {
    layout->names.push_back(layout->named ? absl::StrCat("column \"", header[i], "\"") : absl::StrCat("column ", i));
  }
  layout->plain_names = PlainNames(header, layout->named);
  if (!layout->named) header.clear();
  ColumnResolver resolver(file, std::move(header), layout->plain_names);
  std::vector<size_t> numeric;
  Times times;
  LODESTONE_RETURN_IF_ERROR(AssignRoles(config, transform, &resolver, layout, &numeric, &times));

  std::map<size_t, v1::Transform> transforms;
  for (const auto& entry : config.transform()) {
    LODESTONE_ASSIGN_OR_RETURN(const Columns named, resolver.Find("csv.transform", entry.first));
    for (size_t index : named.indices) {
      const bool is_numeric = std::find(numeric.begin(), numeric.end(), index) != numeric.end();
      if (!is_numeric && named.range) continue;
      if (!is_numeric) return resolver.Error(absl::StrCat("csv.transform: \"", entry.first, "\" is not numeric"));
      if (!transforms.emplace(index, entry.second).second) {
        return resolver.Error(absl::StrCat("csv.transform: ", layout->names[index], " has two transforms"));
      }
    }
  }
  for (size_t i = 0; i < layout->categorical.size(); ++i) {
    const TimeRule::Part part = layout->buckets[i].time.part;
    const std::string& name = layout->plain_names[layout->categorical[i]];
    layout->salts.push_back(StableHash(part == TimeRule::Part::kNone ? name : absl::StrCat(name, ":", PartName(part))));
  }
  LODESTONE_RETURN_IF_ERROR(ShareVocabularies(config, resolver, layout));
  for (size_t index : numeric) {
    const auto own = transforms.find(index);
    layout->numeric.push_back(
        {index, ResolveTransform(own == transforms.end() ? v1::DEFAULT : own->second, transform), false, {}});
  }
  LODESTONE_RETURN_IF_ERROR(AddIndicators(config, resolver, layout));
  for (const Times::Feature& feature : times.numbers) {
    layout->numeric.push_back({feature.index, feature.transform, false, feature.rule});
  }
  return absl::OkStatus();
}

}  // namespace

float CsvLayout::NumberOf(const NumericColumn& column, double x) {
  const bool is_missing = std::isnan(x);
  if (column.indicates_missing) return is_missing ? 1.0f : 0.0f;
  if (column.time.is_set() && !is_missing) x = column.time.Of(x);
  return is_missing ? MissingNumber(column.transform) : TransformNumber(column.transform, x);
}

bool CsvLayout::SetWeight(double number, float* to, std::string* error) const {
  *to = static_cast<float>(number);
  if (number >= 0 && std::isfinite(*to)) return true;
  *error = std::isnan(number) ? absl::StrCat("the weight (", names[*weight], ") is missing")
                              : absl::StrCat(number, " in ", names[*weight],
                                             " is no weight: csv.weight takes finite numbers that are not negative");
  return false;
}

std::string CsvLayout::NoLabel(size_t k, absl::string_view text) const {
  return absl::StrCat(Quoted(text), " in ", names[labels[k]],
                      " is no label: csv.labels takes 0, 1 and what is missing (csv.missing)");
}

bool CsvLayout::SetLabel(size_t k, double number, float* label, std::string* error) const {
  *label = static_cast<float>(number);
  if (number == 0 || number == 1 || std::isnan(number)) return true;
  *error = NoLabel(k, absl::StrCat(number));
  return false;
}

std::string CsvDelimiter(const v1::CsvConfig& config, absl::string_view first) {
  if (config.delimiter().empty()) return DetectCsvDelimiter(first);
  return config.delimiter() == "\\t" ? "\t" : config.delimiter();  // YAML's '\t' is two characters.
}

absl::StatusOr<CsvLayout> FindCsvLayout(const v1::CsvConfig& config, v1::Transform transform, absl::string_view file,
                                        absl::string_view first, std::optional<absl::string_view> second,
                                        bool label_optional, const std::vector<std::string>* names) {
  CsvLayout layout;
  layout.delimiter = CsvDelimiter(config, first);
  layout.label_optional = label_optional;
  std::vector<CsvField> fields;
  std::string scratch;
  LineError error;
  if (!SplitCsv(first, layout.delimiter, &fields, &scratch, &error)) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": first line: column ", error.column, ": ", error.message));
  }
  std::vector<std::string> header;
  for (const CsvField& field : fields) header.emplace_back(field.text);
  // A malformed second line is reported, or tolerated, when it is read.
  if (second.has_value()) SplitCsv(*second, layout.delimiter, &fields, &scratch, &error);
  if (!second.has_value()) fields.clear();
  layout.has_header = HasHeader(config, header, fields);
  const bool named_by_others = !layout.has_header && names != nullptr && names->size() == header.size();
  if (named_by_others) header = *names;
  layout.named = layout.has_header || named_by_others;
  LODESTONE_RETURN_IF_ERROR(FindRoles(config, transform, file, std::move(header), &layout));
  return layout;
}

absl::StatusOr<CsvLayout> FindColumnLayout(const v1::CsvConfig& config, v1::Transform transform, absl::string_view file,
                                           std::vector<std::string> names, bool label_optional) {
  if (names.size() > kColumnsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": ", names.size(), " columns, and there may be ", kColumnsMax, " at most"));
  }
  CsvLayout layout;
  layout.has_header = layout.named = true;
  layout.label_optional = label_optional;
  LODESTONE_RETURN_IF_ERROR(FindRoles(config, transform, file, std::move(names), &layout));
  return layout;
}

}  // namespace lodestone::worker
