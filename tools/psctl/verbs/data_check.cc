#include "tools/psctl/verbs/data_check.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tools/psctl/text/exit_code.h"
#include "tools/psctl/text/message_json.h"
#include "tools/psctl/text/table.h"
#include "worker/model/model_plan.h"

namespace lodestone::psctl {
namespace {

using worker::DataSurvey;
using worker::SurveyedColumn;

constexpr size_t kClassesAsked = 100;   // With more distinct numbers as labels, are they classes?
constexpr double kSpreadMax = 1e4;      // Between the least and the greatest of a column's numbers, unscaled.
constexpr double kMissingShare = 0.01;  // Of numbers that are read as 0 without a word.
constexpr double kIdShare = 0.9;        // Of rows whose category no other row has,
constexpr uint64_t kIdRows = 1000;      // of at least so many.
constexpr size_t kNamesShown = 8;
constexpr double kWeightFar = 10;  // From 1, of the mean of sample weights.

std::string Percent(uint64_t part, uint64_t all) {
  return absl::StrFormat("%.3g %%", all == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(all));
}

std::string RowsText(const DataSurvey& survey) {
  return absl::StrCat(survey.whole ? "all " : "the first ", WithThousands(survey.rows), " rows");
}

// A few of many names.
std::string Names(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kNamesShown);
  return absl::StrCat(absl::StrJoin(names.begin(), names.begin() + static_cast<ptrdiff_t>(shown), ", "),
                      shown < names.size() ? absl::StrCat(" and ", names.size() - shown, " more") : "");
}

// The findings while they are gathered.
class Judge {
 public:
  Judge(const v1::Config& config, const DataSurvey& survey) : config_(config), survey_(survey) {}

  std::vector<DataFinding> Findings() {
    Labels();
    Model();
    Files();
    Columns();
    Logarithms();
    Weights();
    Memory();
    std::stable_sort(findings_.begin(), findings_.end(),
                     [](const DataFinding& a, const DataFinding& b) { return a.is_error && !b.is_error; });
    return std::move(findings_);
  }

 private:
  void Error(std::string text) { findings_.push_back({true, std::move(text)}); }
  void Warn(std::string text) { findings_.push_back({false, std::move(text)}); }

  void Labels() {
    const size_t classes = survey_.schema.class_names.size();
    if (config_.model().loss() != v1::ModelConfig::AUTO || classes <= kClassesAsked || !survey_.numeric_labels) return;
    Error(absl::StrCat("the labels are ", WithThousands(classes), " distinct numbers: are they classes, or numbers to ",
                       "predict? model.loss: auto would take them for classes; set model.loss: squared, or softmax"));
  }

  void Model() {
    const auto plan = worker::PlanModel(config_, survey_.schema);
    if (plan.ok()) return;
    const std::string message(plan.status().message());
    // Other rows may have the classes that these lack.
    if (!survey_.whole && survey_.schema.class_names.size() == 1) {
      return Warn(absl::StrCat(message, " (in ", RowsText(survey_), ": is the file sorted by its label?)"));
    }
    Error(message);
  }

  void Files() {
    const std::vector<std::string>& train = survey_.found.files.train;
    std::vector<std::string> sorted = train;
    std::sort(sorted.begin(), sorted.end());
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    if (twice != sorted.end()) Warn(absl::StrCat("data.train names ", *twice, " twice: its samples count twice"));
    if (survey_.found.files.test.empty() && config_.data().test_share() == 0) {
      Warn("nothing judges the model: name test files in data.test, or set data.test_share");
    }
    if (survey_.malformed > 0) {
      Warn(absl::StrCat(WithThousands(survey_.malformed), " malformed lines are left out (data.bad_lines_max)"));
    }
  }

  void Columns() {
    std::vector<std::string> constant, absent, wide, missing, ids;
    const uint64_t rows = survey_.rows;
    for (const SurveyedColumn& column : survey_.columns) {
      const bool unscaled = column.is_number && column.rule == "none";
      if (column.missing == rows) {
        absent.push_back(column.name);
      } else if (column.distinct == 1 && !column.more && column.rule != "quantiles") {
        constant.push_back(column.name);
      }
      if (unscaled && column.greatest - column.least > kSpreadMax) wide.push_back(column.name);
      const bool reads_as_zero = column.is_number && column.rule != "standardize" && column.rule != "log_standardize";
      const double missing_share = static_cast<double>(column.missing) / static_cast<double>(rows);
      if (reads_as_zero && missing_share > kMissingShare && missing_share < 1 && !Indicated(column.name)) {
        missing.push_back(column.name);
      }
      if (!column.is_number && rows >= kIdRows && !column.more &&
          static_cast<double>(column.distinct) > kIdShare * static_cast<double>(rows)) {
        ids.push_back(column.name);
      }
      if (column.is_label) {
        Warn(absl::StrCat(column.name, " is the label itself in ", RowsText(survey_), ": put it into csv.ignore"));
      } else if (column.tells_label) {
        Warn(absl::StrCat(column.name, " tells the label of ", RowsText(survey_),
                          " without an error: is it known when predictions are made? If not, put it into csv.ignore"));
      }
    }
    const bool named = survey_.found.format == v1::DataConfig::CSV || survey_.found.format == v1::DataConfig::PARQUET;
    WarnOf(absent, "without a value in ", ": is csv.delimiter, or csv.missing, right?");
    WarnOf(constant, "with one value in ", ": nothing can be learned of it");
    WarnOf(wide, "with numbers far apart in ", ": data.numeric: log_standardize scales them");
    WarnOf(missing, "with missing numbers, read as 0, in ",
           named      ? ": csv.missing_indicator tells them from zeros, and csv.bucket makes a category of them"
           : is_npy() ? ": data.numeric: standardize takes the mean instead"
                      : ": data.format: csv has what tells them from zeros, csv.missing_indicator and csv.bucket");
    WarnOf(ids, "with a category of its own in nearly each of ", ": an id tells nothing about rows that are new");
  }

  // What preprocessing has done to the numbers of npy files already.
  void Logarithms() {
    constexpr double kGreatestLog = 22.2;  // Of 32 bits.
    if (!is_npy() || !absl::StartsWith(survey_.schema.description.numeric(0).transform(), "log")) return;
    const auto may_be_log = [](const SurveyedColumn& column) {
      return !column.is_number || column.greatest <= kGreatestLog;
    };
    if (!std::all_of(survey_.columns.begin(), survey_.columns.end(), may_be_log)) return;
    Warn(absl::StrCat(
        "no number in ", RowsText(survey_), " is above ", kGreatestLog,
        ": they seem to be logarithms already, and data.numeric takes them again; set none or standardize"));
  }

  bool is_npy() const { return survey_.found.format == v1::DataConfig::CRITEO_NPY; }

  bool Indicated(const std::string& name) const {
    const auto& columns = survey_.schema.description.numeric();
    return std::any_of(columns.begin(), columns.end(),
                       [&](const auto& column) { return column.indicates_missing() && column.name() == name; });
  }

  void WarnOf(const std::vector<std::string>& names, const std::string& what, const std::string& then) {
    if (names.empty()) return;
    Warn(absl::StrCat(names.size() == 1 ? "a column " : absl::StrCat(names.size(), " columns "), what,
                      RowsText(survey_), " (", Names(names), ")", then));
  }

  void Weights() {
    if (survey_.schema.description.weight().empty() || survey_.rows == 0) return;
    const double mean = survey_.weight_sum / static_cast<double>(survey_.rows);
    const std::string column = survey_.schema.description.weight();
    if (mean == 0) {
      const std::string text = absl::StrCat("the weight (", column, ") is 0 in ", RowsText(survey_));
      survey_.whole ? Error(text) : Warn(text);
    } else if (mean > kWeightFar || mean < 1 / kWeightFar) {
      Warn(absl::StrCat("the weights (", column, ") are ", absl::StrFormat("%.3g", mean), " in the mean of ",
                        RowsText(survey_), ": gradients are so many times as large; divide the weights by their mean"));
    }
  }

  // What a worker's part takes in memory, as configs/README.md counts it.
  void Memory() {
    if (!config_.data().spill_dir().empty() || survey_.rows == 0) return;
    const bool ranges = config_.train().sharing() == v1::TrainConfig::RANGES;
    const auto workers = static_cast<double>(ranges ? 1 : std::max<uint32_t>(1, config_.cluster().workers()));
    const double keys = static_cast<double>(survey_.features) / static_cast<double>(survey_.rows);
    const bool images = survey_.found.format == v1::DataConfig::IDX;
    const double sample = 4 + survey_.schema.numeric_count * (images ? 1.0 : 4.0) + 8 * keys;
    const double bytes = sample * static_cast<double>(survey_.samples_about) / workers;
    if (bytes <= static_cast<double>(config_.data().memory_max_bytes())) return;
    Warn(absl::StrCat("a worker's samples take about ", WithUnit(static_cast<uint64_t>(bytes)),
                      " of memory, and data.memory_max_bytes is ", WithUnit(config_.data().memory_max_bytes()),
                      ": set data.spill_dir, or use more workers"));
  }

  const v1::Config& config_;
  const DataSurvey& survey_;
  std::vector<DataFinding> findings_;
};

std::string FormatText(const DataSurvey& survey) {
  const v1::DataDescription& data = survey.schema.description;
  std::string text = absl::AsciiStrToLower(v1::DataConfig::Format_Name(survey.found.format));
  if (survey.format_detected) absl::StrAppend(&text, " (detected)");
  if (survey.found.format != v1::DataConfig::CSV) return text;
  return absl::StrCat(text, data.header() ? ", with a header" : ", without a header", ", separated by \"",
                      absl::CHexEscape(data.delimiter()), "\"");
}

// "click: 3.2 % 1, conversion: 10 % 1, missing in 96.8 %".
std::string LabelsText(const DataSurvey& survey) {
  std::vector<std::string> texts;
  for (const worker::LabelStatistics& label : survey.schema.labels) {
    const uint64_t missing = survey.rows - label.samples;
    texts.push_back(absl::StrCat(label.name, ": ", Percent(label.positives, std::max<uint64_t>(1, label.samples)),
                                 " are 1",
                                 missing > 0 ? absl::StrCat(", missing in ", Percent(missing, survey.rows)) : ""));
  }
  return absl::StrJoin(texts, "; ");
}

std::string LabelText(const DataSurvey& survey) {
  const worker::Schema& schema = survey.schema;
  if (!schema.labels.empty()) return LabelsText(survey);
  const std::string name = schema.description.label().empty() ? "" : absl::StrCat(schema.description.label(), ": ");
  if (schema.class_names.empty()) return absl::StrCat(name, absl::StrFormat("numbers, mean %.6g", schema.label_mean));
  std::vector<std::string> classes;
  for (size_t c = 0; c < schema.class_names.size(); ++c) {
    classes.push_back(absl::StrCat(schema.class_names[c], " (", Percent(schema.class_counts[c], survey.rows), ")"));
  }
  return absl::StrCat(name, WithThousands(classes.size()),
                      classes.size() == 1 ? " class: " : " classes: ", Names(classes));
}

std::string NumberText(double number) { return absl::StrFormat("%.6g", number); }

std::string WeightText(const DataSurvey& survey) {
  return absl::StrCat(survey.schema.description.weight(), ": mean ",
                      NumberText(survey.weight_sum / static_cast<double>(survey.rows)), ", from ",
                      NumberText(survey.weight_least), " to ", NumberText(survey.weight_greatest),
                      survey.weightless > 0 ? absl::StrCat(", 0 in ", Percent(survey.weightless, survey.rows)) : "");
}

}  // namespace

std::vector<DataFinding> JudgeData(const v1::Config& config, const DataSurvey& survey) {
  return Judge(config, survey).Findings();
}

std::string DataText(const DataSurvey& survey, const std::vector<DataFinding>& findings) {
  const worker::FoundData& found = survey.found;
  Rows rows = {{"data", ""}};
  rows.push_back(
      {"train", absl::StrCat(found.files.train.size(), found.files.train.size() == 1 ? " file, " : " files, ",
                             WithUnit(survey.bytes), ": ", Names(found.files.train))});
  if (!found.files.test.empty()) rows.push_back({"test", Names(found.files.test)});
  rows.push_back({"format", FormatText(survey)});
  rows.push_back(
      {"read", absl::StrCat(RowsText(survey),
                            survey.whole ? "" : absl::StrCat(" of about ", WithThousands(survey.samples_about)))});
  rows.push_back({"label", LabelText(survey)});
  if (!survey.schema.description.weight().empty()) rows.push_back({"weight", WeightText(survey)});
  rows.push_back({"features", absl::StrCat(survey.schema.numeric_count, " numbers, ",
                                           survey.schema.sparse ? "key:value features"
                                                                : absl::StrCat(survey.schema.field_count, " fields"))});
  if (survey.features > 0) {
    rows.push_back({"keys", absl::StrCat(WithThousands(survey.keys), " distinct, ",
                                         absl::StrFormat("%.3g", static_cast<double>(survey.features) /
                                                                     static_cast<double>(survey.rows)),
                                         " a row")});
  }
  std::string text = AlignedTable(rows);
  Rows columns = {{"column", "kind", "missing", "distinct", "least", "greatest"}};
  for (const SurveyedColumn& column : survey.columns) {
    const std::string kind = absl::StrCat(column.is_number ? "number" : "category",
                                          column.rule.empty() || column.rule == "none" ? "" : ", " + column.rule);
    const bool numbers = column.is_number && column.missing < survey.rows;
    columns.push_back({column.name, kind, Percent(column.missing, survey.rows),
                       absl::StrCat(column.more ? "> " : "", WithThousands(column.distinct)),
                       numbers ? NumberText(column.least) : "", numbers ? NumberText(column.greatest) : ""});
  }
  AppendSection(&text, "columns", columns);
  if (!findings.empty()) absl::StrAppend(&text, "\n");
  for (const DataFinding& finding : findings) {
    absl::StrAppend(&text, finding.is_error ? "error: " : "warning: ", finding.text, "\n");
  }
  return text;
}

nlohmann::ordered_json DataJson(const DataSurvey& survey, const std::vector<DataFinding>& findings) {
  nlohmann::ordered_json json;
  json["train"] = survey.found.files.train;
  json["test"] = survey.found.files.test;
  json["bytes"] = survey.bytes;
  json["format"] = absl::AsciiStrToLower(v1::DataConfig::Format_Name(survey.found.format));
  json["rows"] = survey.rows;
  json["whole"] = survey.whole;
  json["samples_about"] = survey.samples_about;
  json["malformed"] = survey.malformed;
  json["label"] = survey.schema.description.label();
  json["label_mean"] = survey.schema.label_mean;
  if (!survey.schema.description.weight().empty()) {
    json["weight"] = {{"name", survey.schema.description.weight()},
                      {"mean", survey.weight_sum / static_cast<double>(survey.rows)},
                      {"least", survey.weight_least},
                      {"greatest", survey.weight_greatest},
                      {"zero", survey.weightless}};
  }
  for (const worker::LabelStatistics& label : survey.schema.labels) {
    json["labels"].push_back({{"name", label.name}, {"rows", label.samples}, {"positives", label.positives}});
  }
  json["classes"] = nlohmann::ordered_json::array();
  for (size_t c = 0; c < survey.schema.class_names.size(); ++c) {
    json["classes"].push_back({{"name", survey.schema.class_names[c]}, {"rows", survey.schema.class_counts[c]}});
  }
  json["features"] = survey.features;
  json["keys"] = survey.keys;
  json["columns"] = nlohmann::ordered_json::array();
  for (const SurveyedColumn& column : survey.columns) {
    nlohmann::ordered_json one = {{"name", column.name},         {"kind", column.is_number ? "number" : "category"},
                                  {"rule", column.rule},         {"missing", column.missing},
                                  {"distinct", column.distinct}, {"more", column.more}};
    if (column.is_number && column.missing < survey.rows) {
      one["least"] = column.least;
      one["greatest"] = column.greatest;
    }
    json["columns"].push_back(std::move(one));
  }
  json["findings"] = nlohmann::ordered_json::array();
  for (const DataFinding& finding : findings) {
    json["findings"].push_back({{"severity", finding.is_error ? "error" : "warning"}, {"text", finding.text}});
  }
  return json;
}

int RunDataCheck(const v1::Config& config, uint64_t rows_max, bool json) {
  if (worker::IsGenerated(config.data())) {
    std::fputs("psctl check: the data is made from a seed (data.generated): there are no files to look at\n", stderr);
    return kExitDone;
  }
  const auto survey = worker::SurveyData(config.data(), worker::LabelsOf(config.model()), rows_max);
  if (!survey.ok()) return Fail("check", survey.status());
  const std::vector<DataFinding> findings = JudgeData(config, *survey);
  std::fputs((json ? IndentedJson(DataJson(*survey, findings)) : DataText(*survey, findings)).c_str(), stdout);
  const bool failed = std::any_of(findings.begin(), findings.end(), [](const auto& one) { return one.is_error; });
  return failed ? kExitFailed : kExitDone;
}

}  // namespace lodestone::psctl
