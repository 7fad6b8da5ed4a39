// CRC32C (Castagnoli), by the processor's instructions.
//
// Thread safety: a pure function.
#pragma once

#include <isa-l/crc.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace lodestone {

// The checksum of `size` bytes; or, if `crc` is that of the bytes before them, of both together.
inline uint32_t Crc32c(const void* data, size_t size, uint32_t crc = 0) {
  constexpr size_t kCallBytesMax = 1 << 30;  // ISA-L takes an int.
  // ISA-L only reads them, and leaves the inversions before and after to its caller.
  auto* bytes = static_cast<unsigned char*>(const_cast<void*>(data));
  crc = ~crc;
  while (size > 0) {
    const size_t taken = std::min(size, kCallBytesMax);
    crc = crc32_iscsi(bytes, static_cast<int>(taken), crc);
    bytes += taken;
    size -= taken;
  }
  return ~crc;
}

}  // namespace lodestone
