// The layout of the pages of an embedding table.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/types.h"
#include "server/table/counted_buffer.h"

namespace lodestone::server {

class Table;

// A page is one CountedBuffer: the keys of its rows, the version (its low half) at which each last changed, then the
// rows: values, then optimizer state.
struct PageLayout {
  explicit PageLayout(const Table& table);

  size_t row_floats;  // Values and state.
  uint32_t rows_log2;
  uint32_t rows() const { return 1u << rows_log2; }
  size_t bytes() const { return rows() * (sizeof(Key) + sizeof(uint32_t) + row_floats * sizeof(float)); }

  Key* Keys(const BufferRef& page) const { return reinterpret_cast<Key*>(page->bytes()); }
  // Low half of the version at which each row last changed, never 0; 0: no row is there.
  uint32_t* Changed(const BufferRef& page) const { return reinterpret_cast<uint32_t*>(Keys(page) + rows()); }
  float* Row(const BufferRef& page, uint32_t i) const {
    return reinterpret_cast<float*>(Changed(page) + rows()) + i * row_floats;
  }
};

// A version's low half as pages store it.
inline uint32_t ChangedStamp(Version version) {
  const uint32_t low = static_cast<uint32_t>(version);
  return low == 0 ? 1 : low;
}

}  // namespace lodestone::server
