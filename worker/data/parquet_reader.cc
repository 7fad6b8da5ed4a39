#include "worker/data/parquet_reader.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "worker/data/number.h"
#include "worker/data/transform.h"

namespace lodestone::worker {
namespace {

constexpr size_t kRowsPerRead = 1024;
constexpr uint32_t kListValuesMax = 1 << 16;  // As many as csv.multi's values_max may be.
constexpr absl::string_view kMagic = "PAR1";
constexpr absl::string_view kEncryptedMagic = "PARE";
constexpr size_t kTailBytes = 8;  // The footer's length and the magic.

absl::StatusOr<ParquetMetadata> ReadMetadata(const RandomFile& file) {
  std::string bytes;
  if (file.bytes() < kMagic.size() + kTailBytes) return absl::InvalidArgumentError("it is no Parquet file: too short");
  LODESTONE_RETURN_IF_ERROR(file.Read(file.bytes() - kTailBytes, kTailBytes, &bytes));
  const absl::string_view magic = absl::string_view(bytes).substr(4);
  if (magic == kEncryptedMagic) return absl::UnimplementedError("it is an encrypted Parquet file");
  if (magic != kMagic) {
    return absl::InvalidArgumentError(
        "it is no whole Parquet file: it does not end as one; was it written to its end?");
  }
  uint32_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof(size));
  if (size > limits::kParquetFooterBytesMax || size > file.bytes() - kTailBytes - kMagic.size()) {
    return absl::DataLossError(absl::StrCat("its footer cannot have ", size, " bytes"));
  }
  LODESTONE_RETURN_IF_ERROR(file.Read(file.bytes() - kTailBytes - size, size, &bytes));
  return ParseParquetMetadata(bytes, file.bytes());
}

template <typename Number>
absl::string_view Digits(Number number, std::string* scratch) {
  scratch->resize(32);
  const auto end = std::to_chars(scratch->data(), scratch->data() + scratch->size(), number);
  return {scratch->data(), static_cast<size_t>(end.ptr - scratch->data())};
}

}  // namespace

absl::StatusOr<ParquetFile> ParquetFile::Open(const std::string& path) {
  ParquetFile opened;
  LODESTONE_ASSIGN_OR_RETURN(opened.file, RandomFile::Open(path));
  absl::StatusOr<ParquetMetadata> metadata = ReadMetadata(*opened.file);
  if (!metadata.ok()) return Annotate(metadata.status(), path);
  opened.metadata = *std::move(metadata);
  return opened;
}

std::vector<std::string> ParquetFile::Names() const {
  std::vector<std::string> names;
  for (const ParquetColumn& column : metadata.columns) names.push_back(column.name);
  return names;
}

absl::StatusOr<std::unique_ptr<SampleReader>> ParquetReader::Create(ParquetFile file, CsvLayout layout,
                                                                    const FilePart& part) {
  std::unique_ptr<ParquetReader> reader(new ParquetReader(std::move(file), std::move(layout)));
  const std::vector<ParquetRowGroup>& groups = reader->file_.metadata.row_groups;
  reader->groups_end_ = std::min<uint64_t>(part.end, groups.size());
  reader->group_ = std::min<uint64_t>(part.begin, reader->groups_end_);
  for (size_t g = 0; g < reader->group_; ++g) reader->first_row_ += groups[g].rows;
  std::vector<size_t> used = reader->layout_.categorical;
  for (const CsvLayout::NumericColumn& column : reader->layout_.numeric) used.push_back(column.index);
  std::vector<std::optional<size_t>> single(reader->layout_.labels.begin(), reader->layout_.labels.end());
  for (const std::optional<size_t>& column :
       {reader->layout_.label, reader->layout_.id, reader->layout_.group, reader->layout_.weight}) {
    single.push_back(column);
  }
  for (const std::optional<size_t>& column : single) {
    if (!column.has_value()) continue;
    if (reader->file_.metadata.columns[*column].is_list) {
      return reader->Annotated(
          absl::UnimplementedError(
              "it has lists; a label, an id or a group is one value for each row, and so is a weight"),
          *column);
    }
    used.push_back(*column);
  }
  reader->columns_.resize(reader->file_.metadata.columns.size());
  const ParquetChunk none;
  for (const size_t column : used) {
    const ParquetColumn& read = reader->file_.metadata.columns[column];
    LODESTONE_RETURN_IF_ERROR(
        reader->Annotated(CheckReadable(read, /*with_lists=*/reader->ListValuesMax(column) > 0), column));
    reader->columns_[column] = std::make_unique<ParquetColumnReader>(reader->file_.file.get(), &read, &none);
  }
  return std::unique_ptr<SampleReader>(std::move(reader));
}

absl::Status ParquetReader::Annotated(const absl::Status& status, size_t column) const {
  return Annotate(status, absl::StrCat(file_.file->path(), ": ", layout_.names[column]));
}

absl::StatusOr<bool> ParquetReader::NextBatch() {
  while (group_left_ == 0) {
    if (group_ == groups_end_) return false;
    parsed_ = bytes_parsed();
    const ParquetRowGroup& group = file_.metadata.row_groups[group_++];
    group_left_ = group.rows;
    translated_ = false;
    for (size_t c = 0; c < columns_.size(); ++c) {
      if (columns_[c] == nullptr) continue;
      columns_[c] = std::make_unique<ParquetColumnReader>(file_.file.get(), &file_.metadata.columns[c],
                                                          &group.chunks[c], ListValuesMax(c));
    }
  }
  row_ = 0;
  rows_ = std::min<uint64_t>(kRowsPerRead, group_left_);
  for (size_t c = 0; c < columns_.size(); ++c) {
    if (columns_[c] == nullptr) continue;
    LODESTONE_RETURN_IF_ERROR(Annotated(Annotate(columns_[c]->Read(rows_), absl::StrCat("row group ", group_ - 1)), c));
  }
  group_left_ -= rows_;
  if (!translated_) MakeTranslations();
  TranslateBatch();
  return true;
}

bool ParquetReader::IsMissing(size_t column) const {
  return columns_[column]->codes()[row_] == ParquetColumnReader::kMissing || StandsForMissing(column, Value(column));
}

bool ParquetReader::StandsForMissing(size_t column, const ParquetValueRef& value) const {
  if (value.values->are_texts) return layout_.IsMissing(value.text());
  if (std::isnan(value.number())) return true;
  std::string scratch;
  return !layout_.missing.empty() && layout_.IsMissing(TextOf(column, value, &scratch));
}

absl::string_view ParquetReader::TextOf(size_t column, const ParquetValueRef& value, std::string* scratch) const {
  if (value.values->are_texts) return value.text();
  const ParquetColumn& type = file_.metadata.columns[column];
  if (!value.values->are_integers && type.type == ParquetType::kFloat) {
    return Digits(static_cast<float>(value.number()), scratch);
  }
  if (!value.values->are_integers) return Digits(value.number(), scratch);
  if (type.is_unsigned) return Digits(static_cast<uint64_t>(value.integer()), scratch);
  return Digits(value.integer(), scratch);
}

bool ParquetReader::NumberOf(const ParquetValueRef& value, double* number) {
  if (value.values->are_texts) return ParseNumber(value.text(), number);
  *number = value.number();
  return std::isfinite(static_cast<float>(*number));
}

bool ParquetReader::TimeOf(size_t column, const ParquetValueRef& value, v1::DateTimeColumn::Format format,
                           double* seconds) const {
  const ParquetTimeUnit unit = file_.metadata.columns[column].time;
  if (value.values->are_texts) return ParseTime(value.text(), format, seconds);
  if (!value.values->are_integers || unit.seconds == 0) {
    std::string scratch;
    return ParseTime(TextOf(column, value, &scratch), format, seconds);
  }
  *seconds = unit.SecondsOf(value.integer());
  return IsTime(*seconds);
}

bool ParquetReader::ReadNumber(const CsvLayout::NumericColumn& column, const ParquetValueRef* value, float* number,
                               std::string* error) {
  double x = std::nan("");
  if (column.time.is_set()) {
    if (value != nullptr && !StandsForMissing(column.index, *value) &&
        !TimeOf(column.index, *value, column.time.format, &x)) {
      *error = NoTime(TextOf(column.index, *value, &scratch_), layout_.names[column.index]);
      return false;
    }
    *number = CsvLayout::NumberOf(column, x);
    return true;
  }
  if (value != nullptr && !StandsForMissing(column.index, *value) && !NumberOf(*value, &x)) {
    *error = absl::StrCat(Quoted(TextOf(column.index, *value, &scratch_)), " in ", layout_.names[column.index],
                          " is not a number; csv.categorical, csv.ignore or csv.missing could name it");
    return false;
  }
  *number = CsvLayout::NumberOf(column, x);
  return true;
}

bool ParquetReader::ReadKey(size_t field, const ParquetValueRef* value, Key* key, double* counted, std::string* error) {
  const size_t column = layout_.categorical[field];
  const bool is_missing = value == nullptr || StandsForMissing(column, *value);
  absl::string_view text = is_missing ? "" : TextOf(column, *value, &scratch_);
  if (const BucketRule& rule = layout_.buckets[field]; rule.kind != BucketRule::Kind::kText) {
    *counted = std::nan("");
    const bool is_time = rule.kind == BucketRule::Kind::kTime;
    if (!is_missing && is_time && !TimeOf(column, *value, rule.time.format, counted)) {
      *error = NoTime(text, layout_.names[column]);
      return false;
    }
    if (!is_missing && !is_time && !NumberOf(*value, counted)) {
      *error = absl::StrCat(Quoted(text), " in ", layout_.names[column], " is not a number, which csv.bucket needs");
      return false;
    }
    if (!is_missing) text = rule.TextOf(*counted, &bucket_);
  }
  *key = StableHash({text.data(), text.size()}, layout_.salts[field]);
  return true;
}

bool ParquetReader::ReadWeight(float* weight, std::string* error) {
  const size_t column = *layout_.weight;
  double number = std::nan("");
  if (!IsMissing(column) && !NumberOf(Value(column), &number)) {
    *error = absl::StrCat(Quoted(TextOf(column, Value(column), &scratch_)), " in ", layout_.names[column],
                          " is no weight: csv.weight takes finite numbers that are not negative");
    return false;
  }
  return layout_.SetWeight(number, weight, error);
}

bool ParquetReader::ReadLabels(std::vector<float>* labels, std::string* error) {
  labels->resize(layout_.labels.size());
  for (size_t k = 0; k < labels->size(); ++k) {
    const size_t column = layout_.labels[k];
    double number = std::nan("");
    if (!IsMissing(column) && !NumberOf(Value(column), &number)) {
      *error = layout_.NoLabel(k, TextOf(column, Value(column), &scratch_));
      return false;
    }
    if (!layout_.SetLabel(k, number, &(*labels)[k], error)) return false;
  }
  return true;
}

void ParquetReader::MakeTranslations() {
  translated_ = true;
  std::string error;
  const auto translate = [](const ParquetValues& dictionary, const auto& read, auto* translation) {
    if (dictionary.size() == 0) return;
    translation->values.resize(dictionary.size() + 1);
    read(nullptr, &translation->values.back());
    for (size_t v = 0; v < dictionary.size(); ++v) {
      const ParquetValueRef value{&dictionary, v};
      if (!read(&value, &translation->values[v])) return translation->values.clear();
    }
  };
  numbers_.assign(layout_.numeric.size(), {});
  for (size_t i = 0; i < numbers_.size(); ++i) {
    const CsvLayout::NumericColumn& column = layout_.numeric[i];
    const auto read = [&](const ParquetValueRef* value, float* number) {
      return ReadNumber(column, value, number, &error);
    };
    translate(columns_[column.index]->dictionary(), read, &numbers_[i]);
  }
  keys_.assign(layout_.categorical.size(), {});
  for (size_t i = 0; i < keys_.size(); ++i) {
    if (layout_.buckets[i].counts || (!layout_.multi.empty() && layout_.multi[i].several)) continue;
    double counted = 0;
    const auto read = [&](const ParquetValueRef* value, Key* key) { return ReadKey(i, value, key, &counted, &error); };
    translate(columns_[layout_.categorical[i]]->dictionary(), read, &keys_[i]);
  }
}

void ParquetReader::AddSeveral(size_t field, ParsedLine* parsed) {
  const size_t column = layout_.categorical[field];
  const ParquetColumnReader& reader = *columns_[column];
  FieldCategories categories(layout_.multi[field], layout_.salts[field], parsed);
  const auto is_missing = [&](absl::string_view text) { return layout_.IsMissing(text); };
  if (file_.metadata.columns[column].is_list) {
    for (size_t i = reader.row_begins()[row_]; i < reader.row_begins()[row_ + 1]; ++i) {
      const ParquetValueRef value = reader.At(reader.codes()[i]);
      if (!StandsForMissing(column, value)) categories.Add(TextOf(column, value, &scratch_), is_missing);
    }
  } else if (!IsMissing(column)) {
    categories.AddText(TextOf(column, Value(column), &scratch_), is_missing);
  }
  categories.Finish();
}

uint32_t ParquetReader::ListValuesMax(size_t column) const {
  for (size_t i = 0; i < layout_.multi.size(); ++i) {
    if (layout_.categorical[i] != column || !layout_.multi[i].several) continue;
    // Values that stand for missing ones do not count: the empty text and NaN do so, too.
    const ParquetType type = file_.metadata.columns[column].type;
    const bool all_count = type == ParquetType::kBoolean || type == ParquetType::kInt32 || type == ParquetType::kInt64;
    return all_count && layout_.missing.empty() ? layout_.multi[i].values_max : kListValuesMax;
  }
  return 0;
}

void ParquetReader::TranslateBatch() {
  // Column by column: a column's translation is what the caches hold meanwhile.
  const auto translate = [rows = rows_](const ParquetColumnReader& reader, size_t at, size_t stride, auto* translation,
                                        auto* to) {
    translation->holds = !translation->values.empty() && reader.all_of_dictionary();
    if (!translation->holds) return;
    const auto* const values = translation->values.data();
    const auto missing = static_cast<uint32_t>(translation->values.size() - 1);
    const uint32_t* const codes = reader.codes().data();
    to += at;
    for (size_t r = 0; r < rows; ++r) to[r * stride] = values[std::min(codes[r], missing)];
  };
  batch_numbers_.resize(rows_ * numbers_.size());
  for (size_t i = 0; i < numbers_.size(); ++i) {
    translate(*columns_[layout_.numeric[i].index], i, numbers_.size(), &numbers_[i], batch_numbers_.data());
  }
  batch_keys_.resize(rows_ * keys_.size());
  for (size_t i = 0; i < keys_.size(); ++i) {
    translate(*columns_[layout_.categorical[i]], i, keys_.size(), &keys_[i], batch_keys_.data());
  }
}

bool ParquetReader::AddNumbers(ParsedLine* parsed, std::string* error) {
  const float* const translated = batch_numbers_.data() + row_ * numbers_.size();
  parsed->numeric.assign(translated, translated + numbers_.size());
  for (size_t i = 0; i < numbers_.size(); ++i) {
    if (numbers_[i].holds) continue;
    const ParquetColumnReader& reader = *columns_[layout_.numeric[i].index];
    const uint32_t code = reader.codes()[row_];
    const bool is_missing = code == ParquetColumnReader::kMissing;
    const ParquetValueRef value = is_missing ? ParquetValueRef() : reader.At(code);
    if (!ReadNumber(layout_.numeric[i], is_missing ? nullptr : &value, &parsed->numeric[i], error)) return false;
  }
  return true;
}

bool ParquetReader::AddCategories(ParsedLine* parsed, std::string* error) {
  const Key* const translated = batch_keys_.data() + row_ * keys_.size();
  const bool several = !layout_.multi.empty();
  if (!several) parsed->keys.assign(translated, translated + keys_.size());
  for (size_t i = 0; i < keys_.size(); ++i) {
    if (several && layout_.multi[i].several) {
      AddSeveral(i, parsed);
      continue;
    }
    Key key = translated[i];
    if (!keys_[i].holds) {
      const ParquetColumnReader& reader = *columns_[layout_.categorical[i]];
      const uint32_t code = reader.codes()[row_];
      const bool is_missing = code == ParquetColumnReader::kMissing;
      const ParquetValueRef value = is_missing ? ParquetValueRef() : reader.At(code);
      double counted = 0;
      if (!ReadKey(i, is_missing ? nullptr : &value, &key, &counted, error)) return false;
      if (layout_.buckets[i].counts) parsed->counted.push_back(counted);
      if (!several) parsed->keys[i] = key;
    }
    if (!several) continue;
    parsed->keys.push_back(key);
    parsed->field_keys.push_back(1);
  }
  if (several) SetPoolingValues(layout_.multi, parsed);
  return true;
}

absl::StatusOr<LineOutcome> ParquetReader::Next(ParsedLine* parsed, LineError* error) {
  if (read_ > 0) ++row_;
  if (row_ >= rows_) {
    LODESTONE_ASSIGN_OR_RETURN(const bool found, NextBatch());
    if (!found) return LineOutcome::kBlank;
  }
  ++read_;
  parsed->label = layout_.unlabelled ? kLabelOfAll : absl::string_view();
  if (layout_.label.has_value()) {
    const size_t label = *layout_.label;
    const bool is_missing = IsMissing(label);
    if (is_missing && !layout_.label_optional) {
      error->message = absl::StrCat("the label (", layout_.names[label], ") is missing");
      return LineOutcome::kMalformed;
    }
    if (!is_missing) parsed->label = TextOf(label, Value(label), &label_);
  }
  if (layout_.id.has_value()) parsed->id = IsMissing(*layout_.id) ? "" : TextOf(*layout_.id, Value(*layout_.id), &id_);
  if (layout_.group.has_value()) {
    const size_t group = *layout_.group;
    parsed->group = GroupOf(IsMissing(group) ? "" : TextOf(group, Value(group), &scratch_));
  }
  if (layout_.weight.has_value() && !ReadWeight(&parsed->weight, &error->message)) return LineOutcome::kMalformed;
  if (!ReadLabels(&parsed->labels, &error->message)) return LineOutcome::kMalformed;
  parsed->keys.clear();
  parsed->field_keys.clear();
  parsed->counted.clear();
  const bool is_sample = AddNumbers(parsed, &error->message) && AddCategories(parsed, &error->message);
  return is_sample ? LineOutcome::kSample : LineOutcome::kMalformed;
}

uint64_t ParquetReader::position() const { return first_row_ + read_ - 1; }

std::string ParquetReader::PlaceOf(uint64_t position, const LineError&) const {
  return absl::StrCat(file_.file->path(), ": row ", position);
}

uint64_t ParquetReader::bytes_parsed() const {
  uint64_t bytes = parsed_;
  for (const auto& column : columns_) bytes += column == nullptr ? 0 : column->bytes_parsed();
  return bytes;
}

uint64_t ParquetReader::file_offset() const {
  const double share =
      file_.metadata.rows == 0 ? 1 : static_cast<double>(read_) / static_cast<double>(file_.metadata.rows);
  return static_cast<uint64_t>(share * static_cast<double>(file_.file->bytes()));
}

}  // namespace lodestone::worker
