// npy files for tests.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/hash.h"
#include "tests/worker/data/test_files.h"

namespace lodestone::worker {

// The path of a file of tests/worker/data/npy, which NumPy wrote (make_files.py).
inline std::string GivenNpy(const std::string& name) {
  return absl::StrCat(std::getenv("TEST_SRCDIR"), "/", std::getenv("TEST_WORKSPACE"), "/tests/worker/data/npy/", name);
}

// A file that begins with this dictionary, padded as NumPy does it, with `data` behind it.
inline std::string NpyBytes(const std::string& dictionary, const std::string& data, uint8_t major = 1) {
  const size_t length_bytes = major == 1 ? 2 : 4;
  std::string header = dictionary;
  while ((8 + length_bytes + header.size() + 1) % 64 != 0) header += ' ';
  header += '\n';
  std::string file = "\x93NUMPY";
  file += static_cast<char>(major);
  file += '\0';
  for (size_t i = 0; i < length_bytes; ++i) file += static_cast<char>(header.size() >> (8 * i));
  return file + header + data;
}

// An array of float, int32_t or int64_t of this shape, "40, 13".
template <typename T>
std::string NpyOf(const std::string& shape, const std::vector<T>& values) {
  const std::string type = absl::StrCat(std::is_floating_point_v<T> ? "<f" : "<i", sizeof(T));
  return NpyBytes(absl::StrCat("{'descr': '", type, "', 'fortran_order': False, 'shape': (", shape, "), }"),
                  std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)));
}

// The three files of a day, as bytes: `rows` rows of numbers and categories that are drawn by `seed`, labels 0 and 1.
struct NpyDay {
  std::string dense, sparse, labels;
  std::vector<float> numbers;
  std::vector<int32_t> categories, classes;

  explicit NpyDay(uint64_t rows, uint64_t seed = 1) {
    for (uint64_t i = 0; i < rows; ++i) {
      classes.push_back(static_cast<int32_t>(Mix64(seed + i) % 2));
      for (uint64_t c = 0; c < 13; ++c) numbers.push_back(static_cast<float>(Mix64(seed + i * 50 + c) % 5000));
      for (uint64_t c = 13; c < 39; ++c) {
        const uint64_t bits = Mix64(seed + i * 50 + c);
        categories.push_back(bits % 9 == 0 ? 0 : static_cast<int32_t>(Mix64(bits % 300)));
      }
    }
    dense = NpyOf(absl::StrCat(rows, ", 13"), numbers);
    sparse = NpyOf(absl::StrCat(rows, ", 26"), categories);
    labels = NpyOf(absl::StrCat(rows, ", 1"), classes);
  }

  // Lines in Criteo's format with the same numbers, in digits that give the same ones.
  std::string Lines() const {
    std::string lines;
    for (size_t row = 0; row < numbers.size() / 13; ++row) {
      absl::StrAppend(&lines, classes[row]);
      for (size_t c = 0; c < 13; ++c) absl::StrAppendFormat(&lines, "\t%.9g", numbers[row * 13 + c]);
      for (size_t c = 0; c < 26; ++c) {
        const auto bits = static_cast<uint32_t>(categories[row * 26 + c]);
        absl::StrAppend(&lines, "\t", bits == 0 ? "" : absl::StrFormat("%08x", bits));
      }
      lines += "\n";
    }
    return lines;
  }

  // Writes them and gives the path of the numbers.
  std::string Write(const std::string& name) const {
    WriteFile(name + "_sparse.npy", sparse);
    WriteFile(name + "_labels.npy", labels);
    return WriteFile(name + "_dense.npy", dense);
  }
};

}  // namespace lodestone::worker
