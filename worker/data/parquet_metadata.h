// A Parquet file's metadata (parquet.thrift of Apache Parquet): its columns, row groups and pages.
//
// Thread safety: pure functions and plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lodestone::worker {

// How values are stored (parquet.thrift: Type), by its numbers.
enum class ParquetType {
  kBoolean = 0,
  kInt32 = 1,
  kInt64 = 2,
  kInt96 = 3,
  kFloat = 4,
  kDouble = 5,
  kByteArray = 6,
  kFixedLenByteArray = 7,
};

// The unit of an integer that is a date or time: `count` units are `seconds`, so that whole seconds stay whole.
struct ParquetTimeUnit {
  double seconds = 0;  // 0: it is no date and no time.
  double count = 1;
  double SecondsOf(int64_t units) const { return static_cast<double>(units) * seconds / count; }
};

// A column that has values: a leaf of the schema.
struct ParquetColumn {
  std::string name;  // Of a nested one all names, with dots between; a list has its outermost.
  ParquetType type = ParquetType::kByteArray;
  uint32_t type_length = 0;  // Bytes of a FIXED_LEN_BYTE_ARRAY.
  bool is_unsigned = false;  // An integer without sign.
  bool is_decimal = false;   // An integer, in units of 10^-scale.
  int32_t scale = 0;
  ParquetTimeUnit time;
  uint32_t max_definition = 0;   // Its definition level if the value is there.
  bool is_list = false;          // A row may have any number of values,
  uint32_t max_repetition = 0;   // in so many lists in one another,
  uint32_t list_definition = 0;  // of which the innermost has an element from this definition level on.
};

// A column's values in a row group.
struct ParquetChunk {
  int32_t codec = 0;    // parquet.thrift: CompressionCodec.
  uint64_t offset = 0;  // Of its first page, in the file.
  uint64_t bytes = 0;   // Of all its pages.
};

struct ParquetRowGroup {
  uint64_t rows = 0;
  std::vector<ParquetChunk> chunks;  // By column.
};

struct ParquetMetadata {
  uint64_t rows = 0;
  std::vector<ParquetColumn> columns;
  std::vector<ParquetRowGroup> row_groups;
};

// Parses a file's footer. INVALID_ARGUMENT if it is none, or refers to what a file of `file_bytes` does not have.
absl::StatusOr<ParquetMetadata> ParseParquetMetadata(absl::string_view footer, uint64_t file_bytes);

// What comes before a page's bytes.
struct ParquetPage {
  enum class Kind { kData, kDictionary, kDataV2, kOther };

  Kind kind = Kind::kOther;
  size_t header_bytes = 0;
  uint64_t bytes = 0;           // As they lie in the file, behind the header.
  uint64_t unpacked_bytes = 0;  // And unpacked.
  uint64_t values = 0;          // With those that are missing.
  int32_t encoding = 0;         // parquet.thrift: Encoding.
  // Data pages of version 2: levels lie before the values, and are never packed.
  uint64_t repetition_bytes = 0;
  uint64_t definition_bytes = 0;
  bool is_packed = true;
};

// Parses the page header that `bytes` begin with.
absl::StatusOr<ParquetPage> ParseParquetPage(absl::string_view bytes);

}  // namespace lodestone::worker
