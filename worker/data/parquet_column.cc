#include "worker/data/parquet_column.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "worker/data/parquet_codec.h"

namespace lodestone::worker {
namespace {

constexpr uint64_t kPageHeaderBytesUsual = 256;

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

ParquetColumnReader::ParquetColumnReader(const RandomFile* file, const ParquetColumn* column, const ParquetChunk* chunk)
    : file_(file), column_(*column), chunk_(*chunk) {
  for (ParquetValues* values : {&dictionary_, &present_, &values_}) {
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
  if (page_left_ > 0 || dictionary_.size() > 0) return Damaged("a second dictionary");
  LODESTONE_RETURN_IF_ERROR(UnpackParquet(chunk_.codec, packed, page.unpacked_bytes, &dictionary_bytes_));
  if (PlainReader(&column_, dictionary_bytes_).Read(page.values, &dictionary_)) return absl::OkStatus();
  return Damaged("its dictionary has fewer values than it says");
}

absl::Status ParquetColumnReader::TakeData(const ParquetPage& page, absl::string_view packed) {
  if (values_.are_texts) {  // Those that were read lie there.
    kept_.push_back(std::exchange(page_bytes_, std::make_unique<std::string>()));
  }
  absl::string_view levels, values;
  const uint32_t width = BitWidthOf(column_.max_definition);
  if (page.kind == ParquetPage::Kind::kDataV2) {
    const uint64_t level_bytes = page.definition_bytes + page.repetition_bytes;
    if (page.definition_bytes > packed.size() || page.repetition_bytes > packed.size() - page.definition_bytes ||
        level_bytes > page.unpacked_bytes) {
      return Damaged("its levels are longer than the page");
    }
    page_bytes_->assign(packed.data() + page.repetition_bytes, page.definition_bytes);
    std::string unpacked;
    LODESTONE_RETURN_IF_ERROR(UnpackParquet(page.is_packed ? chunk_.codec : 0, packed.substr(level_bytes),
                                            page.unpacked_bytes - level_bytes, &unpacked));
    *page_bytes_ += unpacked;
    levels = absl::string_view(*page_bytes_).substr(0, page.definition_bytes);
    values = absl::string_view(*page_bytes_).substr(page.definition_bytes);
  } else {
    LODESTONE_RETURN_IF_ERROR(UnpackParquet(chunk_.codec, packed, page.unpacked_bytes, page_bytes_.get()));
    values = *page_bytes_;
    if (width > 0) {
      LODESTONE_ASSIGN_OR_RETURN(levels, TakeLevels(&values));
    }
  }
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
  present_.Clear();
  if (!indexed_ && !truths_in_runs_) {
    return plain_.Read(count, &present_) ? absl::OkStatus() : Damaged("it has fewer values than it says");
  }
  scratch_.resize(count);
  if (!indices_.Read(scratch_)) return Damaged("it has fewer values than it says");
  for (const uint32_t index : scratch_) {
    if (truths_in_runs_) {
      present_.numbers.push_back(index);
      present_.integers.push_back(index);
    } else if (index < dictionary_.size()) {
      present_.AddFrom(dictionary_, index);
    } else {
      return Damaged(absl::StrCat("value ", index, " of a dictionary of ", dictionary_.size()));
    }
  }
  return absl::OkStatus();
}

absl::Status ParquetColumnReader::ReadOfPage(size_t rows) {
  std::vector<uint32_t> levels(rows);
  const bool may_miss = column_.max_definition > 0;
  if (may_miss && !definitions_.Read(levels)) return Damaged("it has fewer levels than values");
  const auto is_present = [&](uint32_t level) { return level == column_.max_definition; };
  LODESTONE_RETURN_IF_ERROR(ReadPresent(static_cast<size_t>(std::count_if(levels.begin(), levels.end(), is_present))));
  size_t next = 0;
  for (const uint32_t level : levels) {
    missing_.push_back(!is_present(level));
    if (is_present(level)) {
      values_.AddFrom(present_, next++);
    } else {
      values_.AddMissing();
    }
  }
  page_left_ -= rows;
  return absl::OkStatus();
}

absl::Status ParquetColumnReader::Read(size_t rows) {
  values_.Clear();
  missing_.clear();
  kept_.clear();
  while (rows > 0) {
    while (page_left_ == 0) LODESTONE_RETURN_IF_ERROR(NextPage());
    const size_t count = std::min<uint64_t>(rows, page_left_);
    LODESTONE_RETURN_IF_ERROR(ReadOfPage(count));
    rows -= count;
  }
  return absl::OkStatus();
}

}  // namespace lodestone::worker
