// Reads TensorBoard's event files, from the description of the format alone: it shares no code with what writes them.
#pragma once

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "proto/tensorboard.pb.h"

namespace lodestone::worker {

// CRC32C, bit by bit: the polynomial 0x1edc6f41 reflected, all ones before and after.
inline uint32_t BitwiseCrc32c(std::string_view bytes) {
  uint32_t crc = 0xffffffff;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
  }
  return ~crc;
}

// The records of a file's bytes. The test fails at the first that is not whole, with its offset.
inline std::vector<tensorboard::Event> ParseEvents(std::string_view bytes) {
  const auto masked = [](std::string_view data) {
    const uint32_t crc = BitwiseCrc32c(data);
    return static_cast<uint32_t>(((crc >> 15) | (crc << 17)) + 0xa282ead8u);
  };
  const auto integer = [](std::string_view data) {
    uint64_t value = 0;
    for (size_t i = data.size(); i > 0; --i) value = value << 8 | static_cast<unsigned char>(data[i - 1]);
    return value;
  };
  std::vector<tensorboard::Event> events;
  for (size_t at = 0; at < bytes.size();) {
    const std::string_view rest = bytes.substr(at);
    const uint64_t size = rest.size() < 12 ? 0 : integer(rest.substr(0, 8));
    if (rest.size() < 16 || integer(rest.substr(8, 4)) != masked(rest.substr(0, 8)) || size > rest.size() - 16) {
      ADD_FAILURE() << "no length of a record at " << at << " of " << bytes.size() << " bytes";
      return events;
    }
    const std::string_view data = rest.substr(12, size);
    tensorboard::Event event;
    if (integer(rest.substr(12 + size, 4)) != masked(data) ||
        !event.ParseFromArray(data.data(), static_cast<int>(size))) {
      ADD_FAILURE() << "no record of " << size << " bytes at " << at;
      return events;
    }
    events.push_back(event);
    at += 16 + size;
  }
  return events;
}

inline std::string ReadWhole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace lodestone::worker
