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

absl::StatusOr<std::unique_ptr<SampleReader>> ParquetReader::Create(ParquetFile file, CsvLayout layout) {
  std::unique_ptr<ParquetReader> reader(new ParquetReader(std::move(file), std::move(layout)));
  std::vector<size_t> used = reader->layout_.categorical;
  for (const CsvLayout::NumericColumn& column : reader->layout_.numeric) used.push_back(column.index);
  for (const std::optional<size_t>& column : {reader->layout_.label, reader->layout_.id, reader->layout_.group}) {
    if (column.has_value()) used.push_back(*column);
  }
  reader->columns_.resize(reader->file_.metadata.columns.size());
  const ParquetChunk none;
  for (const size_t column : used) {
    const ParquetColumn& read = reader->file_.metadata.columns[column];
    LODESTONE_RETURN_IF_ERROR(reader->Annotated(CheckReadable(read), column));
    reader->columns_[column] = std::make_unique<ParquetColumnReader>(reader->file_.file.get(), &read, &none);
  }
  return std::unique_ptr<SampleReader>(std::move(reader));
}

absl::Status ParquetReader::Annotated(const absl::Status& status, size_t column) const {
  return Annotate(status, absl::StrCat(file_.file->path(), ": ", layout_.names[column]));
}

absl::StatusOr<bool> ParquetReader::NextBatch() {
  while (group_left_ == 0) {
    if (group_ == file_.metadata.row_groups.size()) return false;
    const ParquetRowGroup& group = file_.metadata.row_groups[group_++];
    group_left_ = group.rows;
    for (size_t c = 0; c < columns_.size(); ++c) {
      if (columns_[c] == nullptr) continue;
      columns_[c] =
          std::make_unique<ParquetColumnReader>(file_.file.get(), &file_.metadata.columns[c], &group.chunks[c]);
    }
  }
  row_ = 0;
  rows_ = std::min<uint64_t>(kRowsPerRead, group_left_);
  for (size_t c = 0; c < columns_.size(); ++c) {
    if (columns_[c] == nullptr) continue;
    LODESTONE_RETURN_IF_ERROR(Annotated(Annotate(columns_[c]->Read(rows_), absl::StrCat("row group ", group_ - 1)), c));
  }
  group_left_ -= rows_;
  return true;
}

bool ParquetReader::IsMissing(size_t column) const {
  const ParquetColumnReader& reader = *columns_[column];
  if (reader.missing()[row_]) return true;
  const ParquetValues& values = reader.values();
  if (values.are_texts) return layout_.IsMissing(values.texts[row_]);
  if (std::isnan(values.numbers[row_])) return true;
  std::string scratch;
  return !layout_.missing.empty() && layout_.IsMissing(TextOf(column, &scratch));
}

absl::string_view ParquetReader::TextOf(size_t column, std::string* scratch) const {
  const ParquetValues& values = columns_[column]->values();
  if (values.are_texts) return values.texts[row_];
  const ParquetColumn& type = file_.metadata.columns[column];
  if (!values.are_integers && type.type == ParquetType::kFloat) {
    return Digits(static_cast<float>(values.numbers[row_]), scratch);
  }
  if (!values.are_integers) return Digits(values.numbers[row_], scratch);
  if (type.is_unsigned) return Digits(static_cast<uint64_t>(values.integers[row_]), scratch);
  return Digits(values.integers[row_], scratch);
}

bool ParquetReader::NumberOf(size_t column, double* number) const {
  const ParquetValues& values = columns_[column]->values();
  if (values.are_texts) return ParseNumber(values.texts[row_], number);
  *number = values.numbers[row_];
  return std::isfinite(static_cast<float>(*number));
}

absl::StatusOr<LineOutcome> ParquetReader::Next(ParsedLine* parsed, LineError* error) {
  if (read_ > 0) ++row_;
  if (row_ >= rows_) {
    LODESTONE_ASSIGN_OR_RETURN(const bool found, NextBatch());
    if (!found) return LineOutcome::kBlank;
  }
  ++read_;
  parsed->label = {};
  if (layout_.label.has_value()) {
    const size_t label = *layout_.label;
    const bool is_missing = IsMissing(label);
    if (is_missing && !layout_.label_optional) {
      error->message = absl::StrCat("the label (", layout_.names[label], ") is missing");
      return LineOutcome::kMalformed;
    }
    if (!is_missing) parsed->label = TextOf(label, &label_);
  }
  if (layout_.id.has_value()) parsed->id = IsMissing(*layout_.id) ? "" : TextOf(*layout_.id, &id_);
  if (layout_.group.has_value()) {
    parsed->group = GroupOf(IsMissing(*layout_.group) ? "" : TextOf(*layout_.group, &scratch_));
  }
  parsed->numeric.clear();
  parsed->keys.clear();
  parsed->counted.clear();
  for (const CsvLayout::NumericColumn& column : layout_.numeric) {
    double number = 0;
    if (IsMissing(column.index)) {
      parsed->numeric.push_back(MissingNumber(column.transform));
    } else if (NumberOf(column.index, &number)) {
      parsed->numeric.push_back(TransformNumber(column.transform, number));
    } else {
      error->message = absl::StrCat(Quoted(TextOf(column.index, &scratch_)), " in ", layout_.names[column.index],
                                    " is not a number; csv.categorical, csv.ignore or csv.missing could name it");
      return LineOutcome::kMalformed;
    }
  }
  for (size_t i = 0; i < layout_.categorical.size(); ++i) {
    const size_t column = layout_.categorical[i];
    const bool is_missing = IsMissing(column);
    absl::string_view text = is_missing ? "" : TextOf(column, &scratch_);
    if (const BucketRule& rule = layout_.buckets[i]; rule.kind != BucketRule::Kind::kText) {
      double number = std::nan("");
      if (!is_missing && !NumberOf(column, &number)) {
        error->message =
            absl::StrCat(Quoted(text), " in ", layout_.names[column], " is not a number, which csv.bucket needs");
        return LineOutcome::kMalformed;
      }
      if (rule.counts) parsed->counted.push_back(number);
      if (!is_missing) text = rule.TextOf(number, &bucket_);
    }
    parsed->keys.push_back(StableHash({text.data(), text.size()}, layout_.salts[i]));
  }
  return LineOutcome::kSample;
}

std::string ParquetReader::PlaceOf(const LineError&) const {
  return absl::StrCat(file_.file->path(), ": row ", read_ - 1);
}

uint64_t ParquetReader::file_offset() const {
  const double share =
      file_.metadata.rows == 0 ? 1 : static_cast<double>(read_) / static_cast<double>(file_.metadata.rows);
  return static_cast<uint64_t>(share * static_cast<double>(file_.file->bytes()));
}

}  // namespace lodestone::worker
