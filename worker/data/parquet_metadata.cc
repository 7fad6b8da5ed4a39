#include "worker/data/parquet_metadata.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/data/parquet_thrift.h"

namespace lodestone::worker {
namespace {

// parquet.thrift: FieldRepetitionType and ConvertedType, as far as they matter.
constexpr double kDateSeconds = 86400;
constexpr int64_t kOptional = 1;
constexpr int64_t kRepeated = 2;
constexpr int64_t kConvertedDecimal = 5;
constexpr int64_t kConvertedDate = 6;
constexpr int64_t kConvertedMillis = 9;
constexpr int64_t kConvertedMicros = 10;
constexpr int64_t kConvertedUint8 = 11;
constexpr int64_t kConvertedUint64 = 14;

// A node of the schema, which is a tree, written down depth first.
struct SchemaElement {
  std::string name;
  int64_t type = -1;  // -1: it has children.
  int64_t type_length = 0;
  int64_t repetition = 0;
  int64_t children = 0;
  int64_t converted = -1;
  int64_t scale = 0;
  ParquetTimeUnit time;  // Of LogicalType.
};

constexpr ParquetTimeUnit kDays = {kDateSeconds, 1}, kMillis = {1, 1e3}, kMicros = {1, 1e6}, kNanos = {1, 1e9};

// The unit of a LogicalType, if it is a date or timestamp. Its fields: 6 DATE, 8 TIMESTAMP, whose second one is a
// TimeUnit: 1 MILLIS, 2 MICROS, 3 NANOS.
ParquetTimeUnit ReadTimeUnit(ThriftReader* reader) {
  ParquetTimeUnit time;
  reader->Struct([&](int type) {
    if (type == 6) time = kDays;
    if (type != 8) return;
    reader->Struct([&](int field) {
      if (field != 2) return;
      reader->Struct([&](int unit) {
        time = unit == 1 ? kMillis : unit == 2 ? kMicros : unit == 3 ? kNanos : ParquetTimeUnit();
      });
    });
  });
  return time;
}

ParquetTimeUnit TimeUnitOf(int64_t converted) {
  return converted == kConvertedDate     ? kDays
         : converted == kConvertedMillis ? kMillis
         : converted == kConvertedMicros ? kMicros
                                         : ParquetTimeUnit();
}

SchemaElement ReadSchemaElement(ThriftReader* reader) {
  SchemaElement element;
  reader->Struct([&](int field) {
    if (field == 1) element.type = reader->Int();
    if (field == 2) element.type_length = reader->Int();
    if (field == 3) element.repetition = reader->Int();
    if (field == 4) element.name = std::string(reader->Text());
    if (field == 5) element.children = reader->Int();
    if (field == 6) element.converted = reader->Int();
    if (field == 7) element.scale = reader->Int();
    if (field == 10) element.time = ReadTimeUnit(reader);
  });
  return element;
}

ParquetChunk ReadChunk(ThriftReader* reader) {
  ParquetChunk chunk;
  int64_t data = 0, dictionary = 0;
  reader->Struct([&](int column_field) {
    if (column_field != 3) return;  // Its metadata.
    reader->Struct([&](int field) {
      if (field == 4) chunk.codec = static_cast<int32_t>(reader->Int());
      if (field == 7) chunk.bytes = static_cast<uint64_t>(reader->Int());
      if (field == 9) data = reader->Int();
      if (field == 11) dictionary = reader->Int();
    });
  });
  // Some writers set the dictionary's offset to 0, where no page can be.
  chunk.offset = static_cast<uint64_t>(dictionary > 0 ? std::min(dictionary, data) : data);
  return chunk;
}

ParquetRowGroup ReadRowGroup(ThriftReader* reader) {
  ParquetRowGroup group;
  reader->Struct([&](int field) {
    if (field == 1) reader->List([&] { group.chunks.push_back(ReadChunk(reader)); });
    if (field == 3) group.rows = static_cast<uint64_t>(reader->Int());
  });
  return group;
}

// Turns the tree into its leaves.
class Leaves {
 public:
  explicit Leaves(const std::vector<SchemaElement>& elements) : elements_(elements) {}

  absl::StatusOr<std::vector<ParquetColumn>> Find() {
    if (elements_.empty()) return absl::InvalidArgumentError("there is no schema");
    next_ = 1;
    for (int64_t i = 0; i < elements_[0].children; ++i) LODESTONE_RETURN_IF_ERROR(Visit({}, 0));
    if (next_ != elements_.size()) return absl::InvalidArgumentError("the schema is no tree");
    return std::move(columns_);
  }

 private:
  static constexpr int kDepthMax = 64;
  static constexpr size_t kNameBytesMax = 32 << 20;  // Of all columns: each has those of the groups around it.

  // The subtree that begins at next_, below `above`.
  absl::Status Visit(ParquetColumn above, int depth) {
    if (next_ >= elements_.size() || depth > kDepthMax) return absl::InvalidArgumentError("the schema is no tree");
    const SchemaElement& element = elements_[next_++];
    // The repeated group of a list, and what is in it, have names that say nothing: "list", "element".
    const bool is_nameless = above.is_list || (element.repetition == kRepeated && !above.name.empty());
    if (!is_nameless) above.name = absl::StrCat(above.name, above.name.empty() ? "" : ".", element.name);
    name_bytes_ += above.name.size();
    if (name_bytes_ > kNameBytesMax) return absl::InvalidArgumentError("the names of its columns are too long");
    if (element.repetition == kOptional || element.repetition == kRepeated) ++above.max_definition;
    if (element.repetition == kRepeated) {
      above.is_list = true;
      ++above.max_repetition;
      above.list_definition = above.max_definition;
    }
    if (element.type < 0) {
      for (int64_t i = 0; i < element.children; ++i) LODESTONE_RETURN_IF_ERROR(Visit(above, depth + 1));
      return absl::OkStatus();
    }
    if (element.type > static_cast<int64_t>(ParquetType::kFixedLenByteArray)) {
      return absl::InvalidArgumentError(absl::StrCat("column \"", above.name, "\" has no type that there is"));
    }
    above.type = static_cast<ParquetType>(element.type);
    above.type_length = static_cast<uint32_t>(std::clamp<int64_t>(element.type_length, 0, UINT32_MAX));
    above.is_unsigned = element.converted >= kConvertedUint8 && element.converted <= kConvertedUint64;
    above.is_decimal = element.converted == kConvertedDecimal;
    above.time = element.time.seconds > 0 ? element.time : TimeUnitOf(element.converted);
    above.scale = static_cast<int32_t>(std::clamp<int64_t>(element.scale, -400, 400));
    columns_.push_back(std::move(above));
    return absl::OkStatus();
  }

  const std::vector<SchemaElement>& elements_;
  size_t next_ = 0;
  size_t name_bytes_ = 0;
  std::vector<ParquetColumn> columns_;
};

absl::Status CheckRowGroups(const ParquetMetadata& metadata, uint64_t file_bytes) {
  uint64_t rows = 0;
  for (size_t g = 0; g < metadata.row_groups.size(); ++g) {
    const ParquetRowGroup& group = metadata.row_groups[g];
    if (group.rows > metadata.rows - std::min(metadata.rows, rows)) {
      return absl::InvalidArgumentError(absl::StrCat("row group ", g, " has more rows than the file"));
    }
    rows += group.rows;
    if (group.chunks.size() != metadata.columns.size()) {
      return absl::InvalidArgumentError(absl::StrCat("row group ", g, " has ", group.chunks.size(),
                                                     " columns, and the schema ", metadata.columns.size()));
    }
    for (const ParquetChunk& chunk : group.chunks) {
      if (chunk.offset > file_bytes || chunk.bytes > file_bytes - chunk.offset) {
        return absl::InvalidArgumentError(absl::StrCat("row group ", g, " goes beyond the end of the file"));
      }
    }
  }
  if (rows == metadata.rows) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the row groups have ", rows, " rows, and the file ", metadata.rows));
}

void ReadDataPage(ThriftReader* reader, ParquetPage* page) {
  reader->Struct([&](int field) {
    if (field == 1) page->values = static_cast<uint64_t>(reader->Int());
    if (field == 2) page->encoding = static_cast<int32_t>(reader->Int());
  });
}

void ReadDataPageV2(ThriftReader* reader, ParquetPage* page) {
  reader->Struct([&](int field) {
    if (field == 1) page->values = static_cast<uint64_t>(reader->Int());
    if (field == 4) page->encoding = static_cast<int32_t>(reader->Int());
    if (field == 5) page->definition_bytes = static_cast<uint64_t>(reader->Int());
    if (field == 6) page->repetition_bytes = static_cast<uint64_t>(reader->Int());
    if (field == 7) page->is_packed = reader->Int() != 0;
  });
}

ParquetPage::Kind KindOf(int64_t type) {
  // parquet.thrift: PageType.
  switch (type) {
    case 0:
      return ParquetPage::Kind::kData;
    case 2:
      return ParquetPage::Kind::kDictionary;
    case 3:
      return ParquetPage::Kind::kDataV2;
    default:
      return ParquetPage::Kind::kOther;
  }
}

}  // namespace

absl::StatusOr<ParquetMetadata> ParseParquetMetadata(absl::string_view footer, uint64_t file_bytes) {
  ThriftReader reader(footer);
  ParquetMetadata metadata;
  std::vector<SchemaElement> schema;
  reader.Struct([&](int field) {
    if (field == 2) reader.List([&] { schema.push_back(ReadSchemaElement(&reader)); });
    if (field == 3) metadata.rows = static_cast<uint64_t>(reader.Int());
    if (field == 4) reader.List([&] { metadata.row_groups.push_back(ReadRowGroup(&reader)); });
  });
  LODESTONE_RETURN_IF_ERROR(Annotate(reader.status(), "the footer"));
  LODESTONE_ASSIGN_OR_RETURN(metadata.columns, Leaves(schema).Find());
  LODESTONE_RETURN_IF_ERROR(CheckRowGroups(metadata, file_bytes));
  return metadata;
}

absl::StatusOr<ParquetPage> ParseParquetPage(absl::string_view bytes) {
  ThriftReader reader(bytes);
  ParquetPage page;
  reader.Struct([&](int field) {
    if (field == 1) page.kind = KindOf(reader.Int());
    if (field == 2) page.unpacked_bytes = static_cast<uint64_t>(reader.Int());
    if (field == 3) page.bytes = static_cast<uint64_t>(reader.Int());
    if (field == 5 || field == 7) ReadDataPage(&reader, &page);  // A dictionary page begins with the same two.
    if (field == 8) ReadDataPageV2(&reader, &page);
  });
  LODESTONE_RETURN_IF_ERROR(Annotate(reader.status(), "the header of a page"));
  page.header_bytes = reader.offset();
  return page;
}

}  // namespace lodestone::worker
