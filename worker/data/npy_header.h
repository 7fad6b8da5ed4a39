// The header of NumPy's npy files: a Python dictionary that says what the array behind it is.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lodestone::worker {

struct NpyHeader {
  std::string type;  // NumPy's name of it: "<f4" are floats of 4 bytes, the lowest first.
  bool fortran_order = false;
  std::vector<uint64_t> shape;
};

// The magic, two bytes of version and the length of the dictionary: what an npy file begins with.
inline constexpr absl::string_view kNpyMagic = "\x93NUMPY";
inline constexpr size_t kNpyPrefixBytesMax = 12;

// Where the dictionary lies in its file.
struct NpyDictionary {
  size_t offset = 0;
  size_t bytes = 0;
};

// Of a file that begins with `prefix`, kNpyPrefixBytesMax bytes unless it is shorter. INVALID_ARGUMENT, naming the
// byte, if it is no npy file of version 1.0, 2.0 or 3.0, or the dictionary is longer than kNpyHeaderBytesMax.
absl::StatusOr<NpyDictionary> FindNpyDictionary(absl::string_view prefix);

// INVALID_ARGUMENT, naming the byte within the file, if `text`, which lies at `offset`, is no dictionary with exactly
// 'descr', 'fortran_order' and 'shape'; UNIMPLEMENTED if the array has structured elements.
absl::StatusOr<NpyHeader> ParseNpyDictionary(absl::string_view text, size_t offset);

}  // namespace lodestone::worker
