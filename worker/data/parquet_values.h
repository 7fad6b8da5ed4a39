// The encodings of Parquet's pages (Encodings.md of Apache Parquet): PLAIN, and RLE with bit-packing, which levels and
// dictionaries' indices have.
//
// Not thread-safe. Neither owns its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/parquet_metadata.h"

namespace lodestone::worker {

// Numbers of `bit_width` bits, at most 32, as runs of equal ones and of packed ones.
class ParquetRuns {
 public:
  ParquetRuns() = default;
  ParquetRuns(absl::string_view bytes, uint32_t bit_width) : bytes_(bytes), bit_width_(bit_width) {}

  // Reads the next numbers.size() numbers; false if there are not so many.
  bool Read(std::span<uint32_t> numbers);

 private:
  bool NextRun();
  void Unpack(std::span<uint32_t> numbers);

  absl::string_view bytes_;
  uint32_t bit_width_ = 0;
  uint64_t equal_left_ = 0;
  uint32_t equal_ = 0;
  uint64_t packed_left_ = 0;
  uint64_t packed_bit_ = 0;  // Of packed_, that comes next.
  absl::string_view packed_;
};

// Values of one column, numbers or texts.
struct ParquetValues {
  bool are_texts = false;
  bool are_integers = false;             // `numbers` came from these: exact.
  std::vector<double> numbers;           // Of columns that are no texts.
  std::vector<int64_t> integers;         // Beside `numbers`, if they are integers and no decimals.
  std::vector<absl::string_view> texts;  // Good as long as the page or dictionary that they lie in.

  size_t size() const { return are_texts ? texts.size() : numbers.size(); }
  void Clear() { Truncate(0); }
  // Keeps the first `size`, of at least so many.
  void Truncate(size_t size);
};

// One of them.
struct ParquetValueRef {
  const ParquetValues* values = nullptr;
  size_t index = 0;

  absl::string_view text() const { return values->texts[index]; }
  double number() const { return values->numbers[index]; }
  int64_t integer() const { return values->integers[index]; }
};

// What `column` holds. UNIMPLEMENTED for INT96, for decimals that are no integers of 32 or 64 bits, and for lists, or,
// `with_lists`, for lists in lists.
absl::Status CheckReadable(const ParquetColumn& column, bool with_lists = false);

// Reads values that lie one after the other (PLAIN) in `bytes`, which must outlive the texts among them.
class PlainReader {
 public:
  PlainReader() = default;
  PlainReader(const ParquetColumn* column, absl::string_view bytes) : column_(column), bytes_(bytes) {}

  // Adds the next `count` to `values`; false if there are not so many.
  bool Read(size_t count, ParquetValues* values);

 private:
  template <typename T>
  bool ReadNumbers(size_t count, ParquetValues* values);
  bool ReadTruths(size_t count, ParquetValues* values);
  bool ReadTexts(size_t count, ParquetValues* values);

  const ParquetColumn* column_ = nullptr;
  absl::string_view bytes_;
  size_t bit_ = 0;  // Of the first byte, which truth values come from.
};

// Bits that numbers up to `max` take.
uint32_t BitWidthOf(uint32_t max);

}  // namespace lodestone::worker
