#include "worker/data/criteo_npy.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "worker/data/transform.h"

namespace lodestone::worker {
namespace {

using Type = NpyArray::Type;

constexpr uint64_t kRowsPerRead = 1024;  // 164 KB: what is read is parsed while the caches hold it.
constexpr absl::string_view kNumbersEnd = "dense.npy";
constexpr absl::string_view kCategoriesEnd = "sparse.npy";
constexpr absl::string_view kLabelsEnd = "labels.npy";
// The first columns of Criteo's lines are the label and the numbers.
constexpr size_t kLabelColumn = 1;
constexpr size_t kNumberColumn = 2;
constexpr size_t kCategoryColumn = kNumberColumn + kCriteoNumbers;

// The array beside `numbers` in `path`, with as many rows. `what` it is of each row, in the plural.
absl::StatusOr<NpyArray> OpenBeside(const NpyArray& numbers, const std::string& path, absl::string_view what,
                                    const NpyArray::Wanted& wanted) {
  absl::StatusOr<NpyArray> array = NpyArray::Open(path, wanted);
  if (absl::IsNotFound(array.status())) {
    return absl::NotFoundError(absl::StrCat(numbers.path(), ": the ", what, " of its rows are read from ", path,
                                            " beside it, which is not there"));
  }
  if (!array.ok() || array->rows() == numbers.rows()) return array;
  return absl::InvalidArgumentError(absl::StrCat(numbers.path(), " has ", numbers.rows(), " rows of numbers, but ",
                                                 path, " has ", array->rows(), " of ", what, "; are they of one day?"));
}

template <typename T>
T At(const std::string& bytes, size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> DaysOf(const std::vector<std::string>& files, absl::string_view option) {
  const absl::flat_hash_set<std::string> all(files.begin(), files.end());
  std::vector<std::string> days;
  for (const std::string& file : files) {
    if (absl::EndsWith(file, kNumbersEnd)) {
      days.push_back(file);
      continue;
    }
    if (absl::EndsWith(file, ".gz") || absl::EndsWith(file, ".zst")) {
      return absl::InvalidArgumentError(
          absl::StrCat(option, ": ", file, " is packed, and npy files are read at any place; unpack it"));
    }
    absl::string_view day = file;
    const bool is_part = absl::ConsumeSuffix(&day, kCategoriesEnd) || absl::ConsumeSuffix(&day, kLabelsEnd);
    const std::string numbers = absl::StrCat(day, kNumbersEnd);
    if (is_part && all.contains(numbers)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(option, ": ", file, " is not named as a day's file of numbers is, day_0_dense.npy; name ",
                     is_part ? numbers : "those",
                     ": categories and labels are read from day_0_sparse.npy and day_0_labels.npy ", "beside it"));
  }
  return days;
}

absl::StatusOr<CriteoDay> CriteoDay::Open(const std::string& numbers, bool with_labels) {
  const absl::string_view day = absl::StripSuffix(numbers, kNumbersEnd);
  return OpenFiles(numbers, absl::StrCat(day, kCategoriesEnd), with_labels ? absl::StrCat(day, kLabelsEnd) : "");
}

absl::StatusOr<CriteoDay> CriteoDay::OpenFiles(const std::string& numbers, const std::string& categories,
                                               const std::string& labels) {
  LODESTONE_ASSIGN_OR_RETURN(NpyArray first,
                             NpyArray::Open(numbers, {.types = {Type::kFloat32}, .columns = kCriteoNumbers}));
  LODESTONE_ASSIGN_OR_RETURN(NpyArray second,
                             OpenBeside(first, categories, "categories",
                                        {.types = {Type::kInt32, Type::kInt64}, .columns = kCriteoCategories}));
  CriteoDay day{std::move(first), std::move(second), std::nullopt};
  if (labels.empty()) return day;
  LODESTONE_ASSIGN_OR_RETURN(
      day.labels, OpenBeside(day.numbers, labels, "labels",
                             {.types = {Type::kInt32, Type::kInt64}, .columns = 1, .or_one_dimension = true}));
  return day;
}

CriteoNpyReader::CriteoNpyReader(CriteoDay day, v1::Transform transform, const FilePart& part)
    : day_(std::move(day)),
      transform_(transform),
      begin_(std::min(part.begin, day_.numbers.rows())),
      end_(std::max(begin_, std::min(part.end, day_.numbers.rows()))),
      row_(begin_) {}

absl::Status CriteoNpyReader::ReadRows() {
  const uint64_t count = std::min(kRowsPerRead, end_ - row_);
  LODESTONE_RETURN_IF_ERROR(day_.numbers.Read(row_, count, &numbers_));
  LODESTONE_RETURN_IF_ERROR(day_.categories.Read(row_, count, &categories_));
  if (day_.labels.has_value()) LODESTONE_RETURN_IF_ERROR(day_.labels->Read(row_, count, &labels_));
  read_begin_ = row_;
  read_end_ = row_ + count;
  return absl::OkStatus();
}

absl::StatusOr<LineOutcome> CriteoNpyReader::Next(ParsedLine* parsed, LineError* error) {
  if (row_ == end_) return LineOutcome::kBlank;
  if (row_ >= read_end_) LODESTONE_RETURN_IF_ERROR(ReadRows());
  const size_t at = row_ - read_begin_;
  ++row_;
  ReadLabel(at, parsed);
  const bool is_sample = ReadNumbers(at, parsed, error) && ReadCategories(at, parsed, error);
  return is_sample ? LineOutcome::kSample : LineOutcome::kMalformed;
}

void CriteoNpyReader::ReadLabel(size_t at, ParsedLine* parsed) {
  parsed->label = {};
  parsed->label_column = kLabelColumn;
  if (!day_.labels.has_value()) return;
  const int64_t label =
      day_.labels->type() == Type::kInt64 ? At<int64_t>(labels_, at) : int64_t{At<int32_t>(labels_, at)};
  const std::to_chars_result digits = std::to_chars(label_.data(), label_.data() + label_.size(), label);
  parsed->label = absl::string_view(label_.data(), digits.ptr - label_.data());
}

bool CriteoNpyReader::ReadNumbers(size_t at, ParsedLine* parsed, LineError* error) const {
  parsed->numeric.resize(kCriteoNumbers);
  float* const numbers = parsed->numeric.data();
  std::memcpy(numbers, numbers_.data() + at * day_.numbers.row_bytes(), day_.numbers.row_bytes());
  bool all_finite = true;
  for (uint32_t i = 0; i < kCriteoNumbers; ++i)
    all_finite &= std::fabs(numbers[i]) <= std::numeric_limits<float>::max();
  if (all_finite && transform_ == v1::NONE) return true;
  for (uint32_t i = 0; i < kCriteoNumbers; ++i) {
    if (std::isinf(numbers[i])) {
      error->column = kNumberColumn + i;
      error->message = "the number is infinite";
      return false;
    }
    numbers[i] = std::isnan(numbers[i]) ? MissingNumber(transform_) : TransformNumber(transform_, numbers[i]);
  }
  return true;
}

bool CriteoNpyReader::ReadCategories(size_t at, ParsedLine* parsed, LineError* error) const {
  parsed->keys.resize(kCriteoCategories);
  Key* const keys = parsed->keys.data();
  if (day_.categories.type() == Type::kInt32) {
    uint32_t categories[kCriteoCategories];
    std::memcpy(categories, categories_.data() + at * sizeof(categories), sizeof(categories));
    for (uint32_t i = 0; i < kCriteoCategories; ++i) keys[i] = keys_.Of(categories[i], i);
    return true;
  }
  for (uint32_t i = 0; i < kCriteoCategories; ++i) {
    const auto category = At<int64_t>(categories_, at * kCriteoCategories + i);
    // Negative ones come of arrays that were int32 once.
    if (category < std::numeric_limits<int32_t>::min() || category > std::numeric_limits<uint32_t>::max()) {
      error->column = kCategoryColumn + i;
      error->message = absl::StrCat(category, " is no category of 32 bits, as those of Criteo's log are");
      return false;
    }
    keys[i] = keys_.Of(static_cast<uint32_t>(category), i);
  }
  return true;
}

std::string CriteoNpyReader::PlaceOf(uint64_t row, const LineError& error) const {
  const auto place = [&](const NpyArray& array, size_t first) {
    const size_t column = error.column - first;
    return absl::StrCat(array.path(), ": row ", row, ", column ", column, " (byte ", array.ByteOf(row, column), ")");
  };
  if (error.column >= kCategoryColumn) return place(day_.categories, kCategoryColumn);
  if (error.column >= kNumberColumn || !day_.labels.has_value()) {
    return place(day_.numbers, std::min(error.column, kNumberColumn));
  }
  return place(*day_.labels, std::min(error.column, kLabelColumn));
}

}  // namespace lodestone::worker
