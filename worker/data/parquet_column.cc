#include "worker/data/parquet_column.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "worker/data/parquet_codec.h"

namespace lodestone::worker {
namespace {

constexpr uint64_t kPageHeaderBytesUsual = 256;
constexpr uint64_t kLevelsPerRead = 1024;
constexpr uint64_t kDictionaryValuesMax = 1 << 25;  // Most writers end theirs at a few MB.

// parquet.thrift: Encoding.
constexpr int32_t kPlain = 0;
constexpr int32_t kPlainDictionary = 2;
constexpr int32_t kRle = 3;
constexpr int32_t kRleDictionary = 8;
constexpr const char* kEncodingNames[] = {
    "PLAIN",          "encoding 1",          "PLAIN_DICTIONARY",        "RLE",
    "BIT_PACKED",     "DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY",
    "RLE_DICTIONARY", "BYTE_STREAM_SPLIT"};

absl::Status UnknownEncoding(int32_t encoding) {
  const std::string name =
      encoding >= 0 && encoding < 10 ? kEncodingNames[encoding] : absl::StrCat("encoding ", encoding);
  return absl::UnimplementedError(
      absl::StrCat("its values are encoded as ", name, "; write them as PLAIN or with a dictionary"));
}

absl::Status Damaged(absl::string_view what) { return absl::DataLossError(absl::StrCat("a page is damaged: ", what)); }

// Takes levels of a data page of version 1 off `bytes`: their length comes before them.
absl::StatusOr<absl::string_view> TakeLevels(absl::string_view* bytes) {
  if (bytes->size() < 4) return Damaged("it ends within its levels");
  uint32_t size = 0;
  for (int i = 0; i < 4; ++i) size |= uint32_t{static_cast<uint8_t>((*bytes)[i])} << (8 * i);
  if (size > bytes->size() - 4) return Damaged("its levels are longer than the page");
  const absl::string_view levels = bytes->substr(4, size);
  bytes->remove_prefix(4 + size);
  return levels;
}

}  // namespace

ParquetColumnReader::ParquetColumnReader(const RandomFile* file, const ParquetColumn* column, const ParquetChunk* chunk,
                                         uint32_t list_values_max)
    : file_(file), column_(*column), chunk_(*chunk), list_values_max_(list_values_max) {
  for (ParquetValues* values : {&dictionary_, &values_}) {
    values->are_texts = column->type == ParquetType::kByteArray || column->type == ParquetType::kFixedLenByteArray;
    const bool whole = column->type == ParquetType::kBoolean || column->type == ParquetType::kInt32 ||
                       column->type == ParquetType::kInt64;
    values->are_integers = whole && !column->is_decimal;
  }
}

absl::Status ParquetColumnReader::NextPage() {
  std::string bytes;
  uint64_t header = kPageHeaderBytesUsual;
  absl::StatusOr<ParquetPage> page = absl::DataLossError("a page is missing");
  // Headers say nowhere how long they are.
  for (; at_ < chunk_.bytes && !page.ok() && header <= limits::kParquetPageHeaderBytesMax; header *= 8) {
    LODESTONE_RETURN_IF_ERROR(file_->Read(chunk_.offset + at_, std::min(header, chunk_.bytes - at_), &bytes));
    page = ParseParquetPage(bytes);
  }
  LODESTONE_RETURN_IF_ERROR(page.status());
  const uint64_t left = chunk_.bytes - at_ - page->header_bytes;
  if (page->bytes > left || page->unpacked_bytes > limits::kParquetPageBytesMax) {
    return Damaged(absl::StrCat("it says that it has ", page->bytes, " bytes, and unpacked ", page->unpacked_bytes));
  }
  LODESTONE_RETURN_IF_ERROR(file_->Read(chunk_.offset + at_ + page->header_bytes, page->bytes, &bytes));
  at_ += page->header_bytes + page->bytes;
  if (page->kind == ParquetPage::Kind::kOther) return absl::OkStatus();  // An index.
  return page->kind == ParquetPage::Kind::kDictionary ? TakeDictionary(*page, bytes) : TakeData(*page, bytes);
}

absl::Status ParquetColumnReader::TakeDictionary(const ParquetPage& page, absl::string_view packed) {
  if (page.encoding != kPlain && page.encoding != kPlainDictionary) return UnknownEncoding(page.encoding);
  if (has_data_ || dictionary_.size() > 0) return Damaged("a second dictionary, or one behind values");
  // A packed page of few bytes may have very many. There may be more than the column uses: a writer that has a
  // dictionary of its own writes it whole into each row group.
  const uint64_t values_max = column_.type == ParquetType::kBoolean ? 2 : kDictionaryValuesMax;
  if (page.values > values_max) {
    return Damaged(absl::StrCat("a dictionary of ", page.values, " values, where there may be ", values_max));
  }
  LODESTONE_RETURN_IF_ERROR(UnpackParquet(chunk_.codec, packed, page.unpacked_bytes, &dictionary_bytes_));
  if (PlainReader(&column_, dictionary_bytes_).Read(page.values, &dictionary_)) return absl::OkStatus();
  return Damaged("its dictionary has fewer values than it says");
}

absl::Status ParquetColumnReader::TakeData(const ParquetPage& page, absl::string_view packed) {
  has_data_ = true;
  if (values_.are_texts) {  // Those that were read lie there.
    kept_.push_back(std::exchange(page_bytes_, std::make_unique<std::string>()));
  }
  absl::string_view repetitions, levels, values;
  const uint32_t width = BitWidthOf(column_.max_definition);
  if (page.kind == ParquetPage::Kind::kDataV2) {
    const uint64_t level_bytes = page.definition_bytes + page.repetition_bytes;
    if (page.definition_bytes > packed.size() || page.repetition_bytes > packed.size() - page.definition_bytes ||
        level_bytes > page.unpacked_bytes) {
      return Damaged("its levels are longer than the page");
    }
    page_bytes_->assign(packed.data(), level_bytes);
    std::string unpacked;
    LODESTONE_RETURN_IF_ERROR(UnpackParquet(page.is_packed ? chunk_.codec : 0, packed.substr(level_bytes),
                                            page.unpacked_bytes - level_bytes, &unpacked));
    *page_bytes_ += unpacked;
    repetitions = absl::string_view(*page_bytes_).substr(0, page.repetition_bytes);
    levels = absl::string_view(*page_bytes_).substr(page.repetition_bytes, page.definition_bytes);
    values = absl::string_view(*page_bytes_).substr(level_bytes);
  } else {
    LODESTONE_RETURN_IF_ERROR(UnpackParquet(chunk_.codec, packed, page.unpacked_bytes, page_bytes_.get()));
    values = *page_bytes_;
    if (column_.max_repetition > 0) {
      LODESTONE_ASSIGN_OR_RETURN(repetitions, TakeLevels(&values));
    }
    if (width > 0) {
      LODESTONE_ASSIGN_OR_RETURN(levels, TakeLevels(&values));
    }
  }
  repetitions_ = ParquetRuns(repetitions, BitWidthOf(column_.max_repetition));
  definitions_ = ParquetRuns(levels, width);
  page_left_ = page.values;
  return StartValues(page.encoding, values);
}

absl::Status ParquetColumnReader::StartValues(int32_t encoding, absl::string_view bytes) {
  indexed_ = encoding == kPlainDictionary || encoding == kRleDictionary;
  truths_in_runs_ = encoding == kRle && column_.type == ParquetType::kBoolean;
  if (indexed_) {
    // A page without a value may be without the width, too.
    const uint32_t width = bytes.empty() ? 0 : static_cast<uint8_t>(bytes.front());
    if (width > 32) return Damaged("indices of more than 32 bits");
    indices_ = ParquetRuns(bytes.substr(std::min<size_t>(1, bytes.size())), width);
  } else if (truths_in_runs_) {
    LODESTONE_ASSIGN_OR_RETURN(const absl::string_view runs, TakeLevels(&bytes));
    indices_ = ParquetRuns(runs, 1);
  } else if (encoding == kPlain) {
    plain_ = PlainReader(&column_, bytes);
  } else {
    return UnknownEncoding(encoding);
  }
  return absl::OkStatus();
}

absl::Status ParquetColumnReader::ReadPresent(size_t count) {
  present_.resize(count);
  const size_t of_dictionary = dictionary_.size();
  if (indexed_) {
    if (!indices_.Read(present_)) return Damaged("it has fewer values than it says");
    for (const uint32_t index : present_) {
      if (index >= of_dictionary) return Damaged(absl::StrCat("value ", index, " of a dictionary of ", of_dictionary));
    }
    return absl::OkStatus();
  }
  const auto before = static_cast<uint32_t>(of_dictionary + values_.size());
  if (truths_in_runs_) {
    if (!indices_.Read(present_)) return Damaged("it has fewer values than it says");
    for (uint32_t& truth : present_) {
      if (truth > 1) return Damaged(absl::StrCat("a truth value is ", truth));  // A run has a whole byte for it.
      truth += before;
    }
    values_.numbers.insert(values_.numbers.end(), {0, 1});
    values_.integers.insert(values_.integers.end(), {0, 1});
    return absl::OkStatus();
  }
  if (!plain_.Read(count, &values_)) return Damaged("it has fewer values than it says");
  std::iota(present_.begin(), present_.end(), before);
  return absl::OkStatus();
}

absl::Status ParquetColumnReader::ReadOfPage(size_t rows) {
  page_left_ -= rows;
  if (column_.max_definition == 0) {
    LODESTONE_RETURN_IF_ERROR(ReadPresent(rows));
    codes_.insert(codes_.end(), present_.begin(), present_.end());
    return absl::OkStatus();
  }
  levels_.resize(rows);
  if (!definitions_.Read(levels_)) return Damaged("it has fewer levels than values");
  LODESTONE_RETURN_IF_ERROR(
      ReadPresent(static_cast<size_t>(std::count(levels_.begin(), levels_.end(), column_.max_definition))));
  present_.push_back(kMissing);  // So that there is a next one.
  const size_t before = codes_.size();
  codes_.resize(before + rows);
  const uint32_t there = column_.max_definition;
  const uint32_t *const levels = levels_.data(), *next = present_.data();
  uint32_t* const to = codes_.data() + before;
  static_assert(kMissing == uint32_t{0} - 1);
  for (size_t i = 0; i < rows; ++i) {
    const uint32_t is_present = levels[i] == there;  // No branch: which are missing cannot be foretold.
    to[i] = *next | (is_present - 1);
    next += is_present;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> ParquetColumnReader::ReadListsOfPage(size_t rows) {
  if (level_ == repetition_levels_.size()) {
    const size_t count = std::min<uint64_t>(kLevelsPerRead, page_left_);
    repetition_levels_.resize(count);
    definition_levels_.resize(count);
    level_ = 0;
    if (!repetitions_.Read(repetition_levels_) || !definitions_.Read(definition_levels_)) {
      return Damaged("it has fewer levels than values");
    }
  }
  // The levels of rows that are wanted, and how many values there are among them.
  size_t end = level_, begun = row_begins_.size(), present = 0;
  for (; end < repetition_levels_.size(); ++end) {
    if (repetition_levels_[end] == 0 && begun++ == rows) break;
    present += definition_levels_[end] == column_.max_definition;
  }
  const bool done = end < repetition_levels_.size();
  const size_t codes_before = codes_.size(), values_before = values_.size();
  LODESTONE_RETURN_IF_ERROR(ReadPresent(present));
  page_left_ -= end - level_;
  for (size_t next = 0; level_ < end; ++level_) {
    if (repetition_levels_[level_] == 0) row_begins_.push_back(codes_.size());
    if (row_begins_.empty()) return Damaged("it begins within a row");
    if (definition_levels_[level_] != column_.max_definition) continue;  // Missing, or the list is empty.
    if (codes_.size() - row_begins_.back() < list_values_max_) codes_.push_back(present_[next]);
    ++next;
  }
  // However long a row is, what is left out of it takes no memory.
  if (codes_.size() == codes_before) values_.Truncate(values_before);
  return done;
}

absl::Status ParquetColumnReader::ReadLists(size_t rows) {
  row_begins_.clear();
  // A row may go on in the next page: it ends where another begins, or with the chunk.
  for (bool done = false; !done;) {
    while (page_left_ == 0 && at_ < chunk_.bytes) LODESTONE_RETURN_IF_ERROR(NextPage());
    if (page_left_ == 0) break;
    LODESTONE_ASSIGN_OR_RETURN(done, ReadListsOfPage(rows));
  }
  if (row_begins_.size() < rows) return Damaged("a page is missing");
  row_begins_.push_back(codes_.size());
  return absl::OkStatus();
}

absl::Status ParquetColumnReader::Read(size_t rows) {
  values_.Clear();
  codes_.clear();
  kept_.clear();
  if (column_.max_repetition > 0) return ReadLists(rows);
  while (rows > 0) {
    while (page_left_ == 0) LODESTONE_RETURN_IF_ERROR(NextPage());
    const size_t count = std::min<uint64_t>(rows, page_left_);
    LODESTONE_RETURN_IF_ERROR(ReadOfPage(count));
    rows -= count;
  }
  return absl::OkStatus();
}

}  // namespace lodestone::worker
