// Thrift's compact protocol (thrift-compact-protocol.md of Apache Thrift), as far as Parquet's metadata needs it.
//
// An error stays: from the first one on nothing is read any more, and every number is 0 and every text empty.
//
// Not thread-safe. Does not own the bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lodestone::worker {

class ThriftReader {
 public:
  explicit ThriftReader(absl::string_view bytes) : bytes_(bytes) {}

  // Reads a struct: calls `read` with the number of each field, whose value it reads with one of the methods below. A
  // value that it leaves alone is skipped.
  void Struct(absl::FunctionRef<void(int field)> read);
  // Reads a list or set: calls `read` for each element.
  void List(absl::FunctionRef<void()> read);
  // An integer of any width; a truth value is 1 or 0.
  int64_t Int();
  // A text or any bytes, as long as `bytes` live.
  absl::string_view Text();

  // INVALID_ARGUMENT, with the offset, if the bytes are no such thing.
  const absl::Status& status() const { return status_; }
  // Bytes read so far.
  size_t offset() const { return at_; }

 private:
  static constexpr int kDepthMax = 32;

  // The types of values on the wire.
  enum Type : uint8_t { kTrue = 1, kFalse = 2, kByte = 3, kI16 = 4, kI32 = 5, kI64 = 6, kDouble = 7, kBinary = 8 };
  enum : uint8_t { kList = 9, kSet = 10, kMap = 11, kStruct = 12 };

  void Fail(absl::string_view what);
  uint8_t Byte();
  uint64_t Varint();
  // Takes the value whose turn it is: its type, or 0 if it has been taken.
  uint8_t Take();
  void Skip();
  void SkipMap();

  const absl::string_view bytes_;
  size_t at_ = 0;
  uint8_t type_ = kStruct;  // Of the value whose turn it is; 0: it has been taken.
  int depth_ = 0;
  absl::Status status_;
};

}  // namespace lodestone::worker
