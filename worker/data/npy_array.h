// An array of rows in one of NumPy's npy files (versions 1.0 to 3.0): little-endian numbers, row after row.
//
// Thread-safe: immutable once it is open. Owns the file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/random_file.h"

namespace lodestone::worker {

class NpyArray {
 public:
  enum class Type { kFloat32, kInt32, kInt64 };
  // What an array has to be.
  struct Wanted {
    std::vector<Type> types;        // One of them,
    uint64_t columns = 0;           // of shape [N, columns],
    bool or_one_dimension = false;  // or [N], which is one column.
  };

  // INVALID_ARGUMENT, UNIMPLEMENTED or DATA_LOSS, naming file and byte and what to write instead, if it is no such
  // array, or the file has fewer or more bytes than that takes.
  static absl::StatusOr<NpyArray> Open(const std::string& path, const Wanted& wanted);

  Type type() const { return type_; }
  uint64_t rows() const { return rows_; }
  uint64_t row_bytes() const { return row_bytes_; }
  const std::string& path() const { return file_->path(); }
  // Where in the file an element lies.
  uint64_t ByteOf(uint64_t row, uint64_t column) const { return offset_ + row * row_bytes_ + column * element_bytes_; }

  // Reads rows as they lie in the file into `to`, which is resized. REQUIRES: they are there.
  absl::Status Read(uint64_t row, uint64_t count, std::string* to) const {
    return file_->Read(ByteOf(row, 0), count * row_bytes_, to);
  }

 private:
  NpyArray() = default;

  std::unique_ptr<RandomFile> file_;
  Type type_ = Type::kFloat32;
  uint64_t offset_ = 0;  // Of the first element, in the file.
  uint64_t element_bytes_ = 0;
  uint64_t rows_ = 0;
  uint64_t row_bytes_ = 0;
};

}  // namespace lodestone::worker
