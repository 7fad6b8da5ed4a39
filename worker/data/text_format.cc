#include "worker/data/text_format.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/data/criteo.h"
#include "worker/data/criteo_npy.h"
#include "worker/data/csv.h"
#include "worker/data/known_columns.h"
#include "worker/data/libsvm.h"
#include "worker/data/line_reader.h"
#include "worker/data/parquet_reader.h"
#include "worker/data/text_reader.h"
#include "worker/data/transform.h"

namespace lodestone::worker {
namespace {

using Format = v1::DataConfig;

constexpr char kSparseGroup[] = "qid";  // What descriptions call the group of libsvm and libffm.

// INVALID_ARGUMENT if settings are only for text. csv.header: yes is true of Parquet.
absl::Status CheckParquet(const v1::CsvConfig& csv, const std::string& file) {
  const bool for_text = csv.skip_lines() > 0 || !csv.comment().empty() || !csv.delimiter().empty();
  if (!for_text && csv.header() != v1::CsvConfig::NO) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("csv.skip_lines, csv.comment, csv.delimiter and csv.header: no are for ", "text, and ", file,
                   " is Parquet; leave them out"));
}

}  // namespace

TextFormat::TextFormat(const v1::DataConfig& config, Format::Format format, const v1::DataDescription* known,
                       Options options)
    : config_(config),
      format_(format),
      known_(known),
      options_(std::move(options)),
      transform_(ResolveTransform(config.numeric(), format == Format::CRITEO ? v1::LOG : v1::NONE)) {}

absl::Status TextFormat::CheckCriteo(const std::string& file) const {
  if (known_ == nullptr || known_->numeric_size() == 0) return absl::OkStatus();
  if (known_->numeric(0).transform() == TransformName(transform_)) return absl::OkStatus();
  return OtherTransform(file, format_ == Format::CRITEO ? "the integers" : "the numbers",
                        known_->numeric(0).transform(), transform_);
}

absl::Status TextFormat::FindSparseGroup(const std::string& file) {
  LODESTONE_ASSIGN_OR_RETURN(LineReader reader, LineReader::Open(file));
  absl::string_view line;
  do {
    LODESTONE_ASSIGN_OR_RETURN(const bool found, reader.Next(&line));
    if (!found) return absl::OkStatus();
  } while (absl::StripAsciiWhitespace(line.substr(0, line.find('#'))).empty());
  sparse_grouped_ = HasLibsvmGroup(line);
  return absl::OkStatus();
}

absl::Status TextFormat::Start(const std::string& file) {
  if (!has_columns() && !config_.csv().group().empty()) {
    return absl::InvalidArgumentError(absl::StrCat("csv.group: samples of ",
                                                   absl::AsciiStrToLower(Format::Format_Name(format_)),
                                                   " files have no column that groups them; leave it out"));
  }
  if (!has_columns() && !config_.csv().weight().empty()) {
    return absl::InvalidArgumentError(absl::StrCat("csv.weight: samples of ",
                                                   absl::AsciiStrToLower(Format::Format_Name(format_)),
                                                   " files have no column of weights; leave it out"));
  }
  if (!has_columns() && !config_.csv().labels().empty()) {
    return absl::InvalidArgumentError(absl::StrCat("csv.labels: samples of ",
                                                   absl::AsciiStrToLower(Format::Format_Name(format_)),
                                                   " files have one label, those of csv and parquet files may have "
                                                   "several; give such files, or take another model.type"));
  }
  if (format_ == Format::PARQUET) LODESTONE_RETURN_IF_ERROR(CheckParquet(config_.csv(), file));
  if (is_sparse() && Standardizes(transform_)) {
    return absl::InvalidArgumentError(
        "data.numeric: libsvm and libffm data cannot be standardized, it would not stay sparse");
  }
  const std::string name = absl::AsciiStrToLower(Format::Format_Name(format_));
  if (known_ != nullptr && known_->format() != name) {
    return absl::InvalidArgumentError(absl::StrCat(file, " is read as ", name, ", and the model was trained on ",
                                                   known_->format(),
                                                   "; give files of that format, or set data.format"));
  }
  schema_.sparse = is_sparse();
  if (is_sparse()) LODESTONE_RETURN_IF_ERROR(FindSparseGroup(file));
  if (is_sparse() && known_ != nullptr && known_->sparse_transform() != TransformName(transform_)) {
    return OtherTransform(file, "the values", known_->sparse_transform(), transform_);
  }
  if (is_criteo()) {
    LODESTONE_RETURN_IF_ERROR(CheckCriteo(file));
    schema_.numeric_count = kCriteoNumbers;
    schema_.field_count = kCriteoCategories;
    transforms_.assign(kCriteoNumbers, transform_);
  } else if (has_columns()) {
    LODESTONE_ASSIGN_OR_RETURN(first_layout_, Layout(file));
    if (!first_layout_.has_value()) return absl::InvalidArgumentError(absl::StrCat(file, ": the file is empty"));
    schema_.numeric_count = static_cast<uint32_t>(first_layout_->numeric.size());
    schema_.field_count = static_cast<uint32_t>(first_layout_->categorical.size());
    for (const CsvLayout::NumericColumn& column : first_layout_->numeric) transforms_.push_back(column.transform);
    // Of fields with one key all poolings are the same.
    for (const MultiRule& rule : first_layout_->multi) schema_.pooling.push_back(rule.pooling);
  }
  return absl::OkStatus();
}

void TextFormat::Describe(v1::DataDescription* description) const {
  description->set_format(absl::AsciiStrToLower(Format::Format_Name(format_)));
  const auto add_number = [&](const std::string& name, v1::Transform transform, bool indicates_missing) {
    v1::DataDescription::NumericColumn& column = *description->add_numeric();
    column.set_name(name);
    column.set_transform(TransformName(transform));
    column.set_deviation(1);
    column.set_indicates_missing(indicates_missing);
  };
  const auto add_category = [&](const std::string& name, uint64_t salt, const BucketRule& bucket) {
    v1::DataDescription::CategoricalColumn& column = *description->add_categorical();
    column.set_name(name);
    column.set_salt(salt);
    column.set_bucket(BucketName(bucket.kind));
    column.mutable_bounds()->Assign(bucket.bounds.begin(), bucket.bounds.end());
  };
  if (is_sparse()) {
    description->set_sparse(true);
    if (sparse_grouped_) description->set_group(kSparseGroup);
    description->set_sparse_transform(TransformName(transform_));
  } else if (is_criteo()) {
    for (uint32_t i = 0; i < kCriteoNumbers; ++i) add_number(absl::StrCat("I", i + 1), transform_, false);
    for (uint32_t i = 0; i < kCriteoCategories; ++i) add_category(absl::StrCat("C", i + 1), i, {});
  } else if (first_layout_.has_value()) {
    const CsvLayout& layout = *first_layout_;
    description->set_header(layout.has_header);
    description->set_delimiter(layout.delimiter);
    description->set_skip_lines(config_.csv().skip_lines());
    description->set_comment(config_.csv().comment());
    if (layout.label.has_value()) description->set_label(layout.plain_names[*layout.label]);
    for (const std::string& name : LabelNames()) description->add_labels()->set_name(name);
    if (layout.group.has_value()) description->set_group(layout.plain_names[*layout.group]);
    if (layout.weight.has_value()) description->set_weight(layout.plain_names[*layout.weight]);
    for (const std::string& missing : layout.missing) description->add_missing(missing);
    for (const auto& column : layout.numeric) {
      add_number(layout.plain_names[column.index], column.transform, column.indicates_missing);
      if (!column.time.is_set()) continue;
      *description->mutable_numeric(description->numeric_size() - 1)->mutable_time() = column.time.Describe();
    }
    for (size_t i = 0; i < layout.categorical.size(); ++i) {
      add_category(layout.plain_names[layout.categorical[i]], layout.salts[i], layout.buckets[i]);
      v1::DataDescription::CategoricalColumn& column = *description->mutable_categorical(static_cast<int>(i));
      column.set_vocabulary_of(layout.vocabulary_of[i]);
      if (layout.buckets[i].time.is_set()) *column.mutable_time() = layout.buckets[i].time.Describe();
      if (layout.multi.empty() || !layout.multi[i].several) continue;
      column.set_pooling(PoolingName(layout.multi[i].pooling));
      column.set_separator(layout.multi[i].separator);
      column.set_values_max(layout.multi[i].values_max);
    }
  }
}

std::vector<std::string> TextFormat::LabelNames() const {
  std::vector<std::string> names;
  if (!first_layout_.has_value()) return names;
  for (const size_t column : first_layout_->labels) names.push_back(first_layout_->plain_names[column]);
  return names;
}

size_t TextFormat::unknown_bounds() const {
  if (!first_layout_.has_value()) return 0;
  const std::vector<BucketRule>& buckets = first_layout_->buckets;
  return std::count_if(buckets.begin(), buckets.end(), [](const BucketRule& rule) { return rule.counts; });
}

void TextFormat::SetBounds(std::vector<std::vector<double>> bounds) {
  bounds_ = std::move(bounds);
  opened_layout_.reset();
  SetBounds(&*first_layout_);
}

void TextFormat::SetBounds(CsvLayout* layout) const {
  size_t next = 0;
  for (BucketRule& rule : layout->buckets) {
    if (!rule.counts || next == bounds_.size()) continue;
    rule.bounds = bounds_[next++];
    rule.counts = false;
  }
}

absl::StatusOr<std::optional<CsvLayout>> TextFormat::RawLayout(const std::string& file) const {
  if (format_ == Format::PARQUET) {
    LODESTONE_ASSIGN_OR_RETURN(const ParquetFile parquet, ParquetFile::Open(file));
    LODESTONE_ASSIGN_OR_RETURN(
        CsvLayout layout, FindColumnLayout(config_.csv(), transform_, file, parquet.Names(), options_.labels_optional));
    return std::optional<CsvLayout>(std::move(layout));
  }
  LODESTONE_ASSIGN_OR_RETURN(LineReader reader, OpenLines({.file = file}, config_.csv().skip_lines()));
  CsvLayout plain;
  std::vector<std::string> lines;
  absl::string_view line;
  while (lines.size() < 2) {
    LODESTONE_ASSIGN_OR_RETURN(const bool found, NextLine(config_.csv().comment(), &reader, &line));
    if (!found) break;
    if (line.find_first_not_of(' ') == absl::string_view::npos) continue;
    for (size_t before = 0; before < line.size();) {
      // What the delimiter seems to be may change with what is joined.
      if (lines.empty()) plain.delimiter = CsvDelimiter(config_.csv(), line);
      before = line.size();
      LODESTONE_RETURN_IF_ERROR(JoinQuoted(CsvParser(plain), &reader, &line));
    }
    lines.emplace_back(line);
  }
  if (lines.empty()) return std::optional<CsvLayout>();
  std::optional<absl::string_view> second;
  if (lines.size() > 1) second = lines[1];
  const bool named = first_layout_.has_value() && first_layout_->named;
  LODESTONE_ASSIGN_OR_RETURN(CsvLayout layout,
                             FindCsvLayout(config_.csv(), transform_, file, lines[0], second, options_.labels_optional,
                                           named ? &first_layout_->plain_names : nullptr));
  return std::optional<CsvLayout>(std::move(layout));
}

absl::StatusOr<std::optional<CsvLayout>> TextFormat::Layout(const std::string& file) const {
  LODESTONE_ASSIGN_OR_RETURN(std::optional<CsvLayout> layout, RawLayout(file));
  if (!layout.has_value()) return layout;
  if (known_ != nullptr) {
    LODESTONE_RETURN_IF_ERROR(ArrangeAsKnown(*known_, file, &*layout));
    LODESTONE_RETURN_IF_ERROR(CheckIndexed(*known_, config_.csv(), file, *layout));
  }
  if (!options_.id_column.empty()) {
    const auto id = std::find(layout->plain_names.begin(), layout->plain_names.end(), options_.id_column);
    if (id == layout->plain_names.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ": there is no column \"", options_.id_column, "\" that could name the samples"));
    }
    layout->id = id - layout->plain_names.begin();
  }
  if (!options_.group_column.empty()) {
    const auto group = std::find(layout->plain_names.begin(), layout->plain_names.end(), options_.group_column);
    if (group != layout->plain_names.end()) layout->group = group - layout->plain_names.begin();
  }
  if (!options_.weight_column.empty()) {
    const auto weight = std::find(layout->plain_names.begin(), layout->plain_names.end(), options_.weight_column);
    if (weight != layout->plain_names.end()) layout->weight = weight - layout->plain_names.begin();
  }
  // All files of a data set are of one layout: one without a header has its columns' names from the first.
  if (known_ == nullptr && first_layout_.has_value() && layout->salts.size() == first_layout_->salts.size()) {
    layout->salts = first_layout_->salts;
  }
  SetBounds(&*layout);
  return layout;
}

absl::Status TextFormat::CheckLikeFirst(const std::string& file, const CsvLayout& layout) const {
  const CsvLayout& first = *first_layout_;
  const auto check_count = [&](const char* kind, size_t count, size_t expected) {
    return count == expected ? absl::OkStatus()
                             : absl::InvalidArgumentError(
                                   absl::StrCat(file, ": ", count, " ", kind, " columns, but ", expected,
                                                " in the first training file; name the same ones in data.csv"));
  };
  if (layout.numeric_by_default && layout.numeric.size() != first.numeric.size()) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": ", layout.names.size(), " columns, but ",
                                                   first.names.size(), " in the first training file"));
  }
  LODESTONE_RETURN_IF_ERROR(check_count("label", layout.labels.size(), first.labels.size()));
  LODESTONE_RETURN_IF_ERROR(check_count("numeric", layout.numeric.size(), first.numeric.size()));
  LODESTONE_RETURN_IF_ERROR(check_count("categorical", layout.categorical.size(), first.categorical.size()));
  if (!layout.has_header || !first.has_header) return absl::OkStatus();
  const auto check_name = [&](size_t index, size_t first_index, const char* option) {
    const std::string &name = layout.names[index], &expected = first.names[first_index];
    return name == expected
               ? absl::OkStatus()
               : absl::InvalidArgumentError(absl::StrCat(file, ": ", name, " stands where the first training file has ",
                                                         expected, "; name the columns in ", option));
  };
  // Columns that are named by an index, or a range, may be others here.
  const std::tuple<std::optional<size_t>, std::optional<size_t>, const char*> single[] = {
      {layout.label, first.label, "csv.label"},
      {layout.group, first.group, "csv.group"},
      {layout.weight, first.weight, "csv.weight"}};
  for (const auto& [index, first_index, option] : single) {
    if (!index.has_value() || !first_index.has_value()) continue;
    LODESTONE_RETURN_IF_ERROR(check_name(*index, *first_index, option));
  }
  for (size_t i = 0; i < layout.labels.size(); ++i) {
    LODESTONE_RETURN_IF_ERROR(check_name(layout.labels[i], first.labels[i], "csv.labels"));
  }
  for (size_t i = 0; i < layout.numeric.size(); ++i) {
    LODESTONE_RETURN_IF_ERROR(check_name(layout.numeric[i].index, first.numeric[i].index,
                                         layout.numeric[i].time.is_set() ? "csv.datetime" : "csv.numeric"));
  }
  for (size_t i = 0; i < layout.categorical.size(); ++i) {
    const BucketRule::Kind kind = layout.buckets[i].kind, expected = first.buckets[i].kind;
    const bool several = !layout.multi.empty() && layout.multi[i].several;
    const bool is_time = kind == BucketRule::Kind::kTime || expected == BucketRule::Kind::kTime;
    const bool is_text = kind == BucketRule::Kind::kText && expected == kind;
    LODESTONE_RETURN_IF_ERROR(check_name(layout.categorical[i], first.categorical[i],
                                         several   ? "csv.multi"
                                         : is_time ? "csv.datetime"
                                         : is_text ? "csv.categorical"
                                                   : "csv.bucket"));
    if (kind == expected) continue;
    return absl::InvalidArgumentError(absl::StrCat(file, ": csv.bucket makes ", BucketName(kind), " of ",
                                                   layout.names[layout.categorical[i]], ", but ", BucketName(expected),
                                                   " in the first training file; name the columns in csv.bucket"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SampleReader>> TextFormat::Open(const FilePart& part) {
  if (is_sparse()) {
    const bool fields = format_ == Format::LIBFFM;
    return TextReader::Open(part, std::make_unique<LibsvmParser>(transform_, options_.labels_optional, fields));
  }
  if (format_ == Format::CRITEO) {
    return TextReader::Open(part, std::make_unique<CriteoParser>(transform_, options_.labels_optional));
  }
  if (format_ == Format::CRITEO_NPY) {
    LODESTONE_ASSIGN_OR_RETURN(CriteoDay day, CriteoDay::Open(part.file, /*with_labels=*/!options_.labels_optional));
    return std::make_unique<CriteoNpyReader>(std::move(day), transform_, part);
  }
  if (part.file != opened_file_ || !opened_layout_.has_value()) {
    LODESTONE_ASSIGN_OR_RETURN(opened_layout_, Layout(part.file));
    opened_file_ = part.file;
  }
  std::optional<CsvLayout> layout = opened_layout_;
  if (!layout.has_value()) return nullptr;
  LODESTONE_RETURN_IF_ERROR(CheckLikeFirst(part.file, *layout));
  if (format_ == Format::PARQUET) {
    LODESTONE_ASSIGN_OR_RETURN(ParquetFile parquet, ParquetFile::Open(part.file));
    return ParquetReader::Create(std::move(parquet), *std::move(layout), part);
  }
  const bool header = layout->has_header;
  return TextReader::Open(part, std::make_unique<CsvParser>(*std::move(layout)),
                          {config_.csv().skip_lines(), config_.csv().comment(), header});
}

}  // namespace lodestone::worker
