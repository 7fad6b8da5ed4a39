// Reads safetensors and npz files in tests: as their formats say, and with every check that is possible.
#pragma once

#include <zlib.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lodestone::psctl {

struct ReadTensor {
  std::string type;  // As the format calls it: "F32" or "<f4".
  std::vector<uint64_t> shape;
  std::string bytes;

  template <typename T>
  std::vector<T> As() const {
    std::vector<T> numbers(bytes.size() / sizeof(T));
    std::memcpy(numbers.data(), bytes.data(), bytes.size());
    return numbers;
  }
};
using ReadTensors = std::map<std::string, ReadTensor>;

template <typename T>
T NumberAt(const std::string& file, size_t at) {
  T number{};
  EXPECT_LE(at + sizeof(T), file.size());
  if (at + sizeof(T) <= file.size()) std::memcpy(&number, file.data() + at, sizeof(T));
  return number;
}

inline ReadTensors ReadSafetensors(const std::string& file) {
  const auto header_size = NumberAt<uint64_t>(file, 0);
  EXPECT_EQ(header_size % 8, 0u);
  const std::string content = file.substr(8 + header_size);
  const auto header = nlohmann::json::parse(file.substr(8, header_size));
  ReadTensors tensors;
  uint64_t total = 0;
  for (const auto& [name, tensor] : header.items()) {
    if (name == "__metadata__") continue;
    const std::vector<uint64_t> offsets = tensor["data_offsets"];
    tensors[name] = {tensor["dtype"], tensor["shape"], content.substr(offsets[0], offsets[1] - offsets[0])};
    total += offsets[1] - offsets[0];
  }
  EXPECT_EQ(total, content.size());
  return tensors;
}

// One .npy file.
inline ReadTensor ReadNpy(const std::string& file) {
  EXPECT_EQ(file.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  const size_t begin = 10 + NumberAt<uint16_t>(file, 8);
  EXPECT_EQ(begin % 64, 0u);
  const std::string header = file.substr(10, begin - 10);
  EXPECT_EQ(header.back(), '\n');
  ReadTensor tensor;
  tensor.type = header.substr(header.find("'descr': '") + 10, 3);
  EXPECT_NE(header.find("'fortran_order': False"), std::string::npos);
  size_t at = header.find("'shape': (") + 10;
  while (header[at] != ')') {
    if (isdigit(header[at])) {
      size_t used = 0;
      tensor.shape.push_back(std::stoull(header.substr(at), &used));
      at += used;
    } else {
      ++at;
    }
  }
  tensor.bytes = file.substr(begin);
  return tensor;
}

inline ReadTensors ReadNpz(const std::string& file) {
  const size_t end = file.size() - 22;
  EXPECT_EQ(NumberAt<uint32_t>(file, end), 0x06054b50u);
  const size_t locator = end - 20;
  EXPECT_EQ(NumberAt<uint32_t>(file, locator), 0x07064b50u);
  const auto end64 = NumberAt<uint64_t>(file, locator + 8);
  EXPECT_EQ(NumberAt<uint32_t>(file, end64), 0x06064b50u);
  const auto count = NumberAt<uint64_t>(file, end64 + 32);
  auto at = NumberAt<uint64_t>(file, end64 + 48);
  EXPECT_EQ(at + NumberAt<uint64_t>(file, end64 + 40), end64);
  ReadTensors tensors;
  for (uint64_t i = 0; i < count; ++i) {
    EXPECT_EQ(NumberAt<uint32_t>(file, at), 0x02014b50u);
    const auto crc = NumberAt<uint32_t>(file, at + 16);
    const auto name_size = NumberAt<uint16_t>(file, at + 28);
    const auto extra_size = NumberAt<uint16_t>(file, at + 30);
    const std::string name = file.substr(at + 46, name_size);
    const size_t extra = at + 46 + name_size + 4;
    const auto bytes = NumberAt<uint64_t>(file, extra);
    const auto local = NumberAt<uint64_t>(file, extra + 16);
    EXPECT_EQ(NumberAt<uint32_t>(file, local), 0x04034b50u);
    EXPECT_EQ(NumberAt<uint32_t>(file, local + 14), crc);
    EXPECT_EQ(file.substr(local + 30, name_size), name);
    const std::string npy = file.substr(local + 30 + name_size + NumberAt<uint16_t>(file, local + 28), bytes);
    EXPECT_EQ(crc32(0, reinterpret_cast<const Bytef*>(npy.data()), static_cast<uInt>(npy.size())), crc);
    at += 46 + name_size + extra_size;
    if (name.ends_with(".json")) continue;  // About the tensors (TensorFile::Metadata).
    EXPECT_EQ(name.substr(name.size() - 4), ".npy");
    tensors[name.substr(0, name.size() - 4)] = ReadNpy(npy);
  }
  EXPECT_EQ(at, end64);
  return tensors;
}

}  // namespace lodestone::psctl
