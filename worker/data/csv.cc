#include "worker/data/csv.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "worker/data/number.h"
#include "worker/data/transform.h"

namespace lodestone::worker {

LineOutcome CsvParser::Parse(absl::string_view line, ParsedLine* parsed, LineError* error) {
  if (line.find_first_not_of(' ') == absl::string_view::npos) return LineOutcome::kBlank;
  if (!SplitCsv(line, layout_.delimiter, &fields_, &scratch_, error)) return LineOutcome::kMalformed;
  if (fields_.size() != layout_.names.size()) {
    const bool more = fields_.size() > layout_.names.size();
    error->column = more ? fields_[layout_.names.size()].column : line.size() + 1;
    error->message = absl::StrCat(fields_.size(), " columns instead of ", layout_.names.size());
    return LineOutcome::kMalformed;
  }
  return ParseFields(fields_, parsed, error);
}

LineOutcome CsvParser::ParseFields(const std::vector<CsvField>& fields, ParsedLine* parsed, LineError* error) {
  if (layout_.id.has_value()) parsed->id = fields[*layout_.id].text;
  if (layout_.group.has_value()) {
    const absl::string_view text = fields[*layout_.group].text;
    parsed->group = GroupOf(layout_.IsMissing(text) ? "" : text);
  }
  if (layout_.weight.has_value()) {
    const CsvField& field = fields[*layout_.weight];
    double number = std::nan("");
    if (!layout_.IsMissing(field.text) && !ParseNumber(field.text, &number)) {
      error->column = field.column;
      error->message = absl::StrCat(Quoted(field.text), " in ", layout_.names[*layout_.weight],
                                    " is no weight: csv.weight takes finite numbers that are not negative");
      return LineOutcome::kMalformed;
    }
    if (!layout_.SetWeight(number, &parsed->weight, &error->message)) {
      error->column = field.column;
      return LineOutcome::kMalformed;
    }
  }
  parsed->label = layout_.unlabelled ? kLabelOfAll : absl::string_view();
  if (layout_.label.has_value()) {
    const CsvField& label = fields[*layout_.label];
    if (!layout_.label_optional && layout_.IsMissing(label.text)) {
      error->column = label.column;
      error->message = absl::StrCat("the label (", layout_.names[*layout_.label], ") is missing");
      return LineOutcome::kMalformed;
    }
    parsed->label = label.text;
    parsed->label_column = label.column;
  }
  parsed->labels.resize(layout_.labels.size());
  for (size_t k = 0; k < layout_.labels.size(); ++k) {
    const CsvField& field = fields[layout_.labels[k]];
    double number = std::nan("");
    const bool is_number = layout_.IsMissing(field.text) || ParseNumber(field.text, &number);
    if (!is_number) error->message = layout_.NoLabel(k, field.text);
    if (is_number && layout_.SetLabel(k, number, &parsed->labels[k], &error->message)) continue;
    error->column = field.column;
    return LineOutcome::kMalformed;
  }
  parsed->numeric.clear();
  parsed->keys.clear();
  parsed->field_keys.clear();
  for (const CsvLayout::NumericColumn& column : layout_.numeric) {
    const CsvField& field = fields[column.index];
    double number = std::nan("");
    const bool is_time = column.time.is_set();
    if (layout_.IsMissing(field.text) ||
        (is_time ? ParseTime(field.text, column.time.format, &number) : ParseNumber(field.text, &number))) {
      parsed->numeric.push_back(CsvLayout::NumberOf(column, number));
    } else if (is_time) {
      error->column = field.column;
      error->message = NoTime(field.text, layout_.names[column.index]);
      return LineOutcome::kMalformed;
    } else {
      error->column = field.column;
      error->message = absl::StrCat(Quoted(field.text), " in ", layout_.names[column.index],
                                    " is not a number; csv.categorical, csv.ignore or csv.missing could name it");
      return LineOutcome::kMalformed;
    }
  }
  parsed->counted.clear();
  for (size_t i = 0; i < layout_.categorical.size(); ++i) {
    const CsvField& field = fields[layout_.categorical[i]];
    if (!layout_.multi.empty() && layout_.multi[i].several) {
      FieldCategories categories(layout_.multi[i], layout_.salts[i], parsed);
      categories.AddText(field.text, [&](absl::string_view piece) { return layout_.IsMissing(piece); });
      categories.Finish();
      continue;
    }
    absl::string_view text = layout_.IsMissing(field.text) ? "" : field.text;
    if (const BucketRule& rule = layout_.buckets[i]; rule.kind != BucketRule::Kind::kText) {
      double number = std::nan("");
      const bool is_time = rule.kind == BucketRule::Kind::kTime;
      if (!text.empty() && is_time && !ParseTime(text, rule.time.format, &number)) {
        error->column = field.column;
        error->message = NoTime(text, layout_.names[layout_.categorical[i]]);
        return LineOutcome::kMalformed;
      }
      if (!text.empty() && !is_time && !ParseNumber(text, &number)) {
        error->column = field.column;
        error->message = absl::StrCat(Quoted(text), " in ", layout_.names[layout_.categorical[i]],
                                      " is not a number, which csv.bucket needs");
        return LineOutcome::kMalformed;
      }
      if (rule.counts) parsed->counted.push_back(number);
      if (!text.empty()) text = rule.TextOf(number, &bucket_);
    }
    parsed->keys.push_back(StableHash({text.data(), text.size()}, layout_.salts[i]));
    if (!layout_.multi.empty()) parsed->field_keys.push_back(1);
  }
  if (!layout_.multi.empty()) SetPoolingValues(layout_.multi, parsed);
  return LineOutcome::kSample;
}

}  // namespace lodestone::worker
