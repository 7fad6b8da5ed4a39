// A gRPC slice of a table's memory: what pulls and broadcasts send is where it lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "common/wire/owned_slice.h"
#include "server/table/counted_buffer.h"

namespace lodestone::server {

// `size` bytes of `buffer` from byte `at` on, which the slice keeps alive.
inline grpc::Slice SliceOf(BufferRef buffer, size_t size, size_t at = 0) {
  const uint8_t* const bytes = buffer->bytes() + at;
  return OwnedSlice(bytes, size, std::move(buffer));
}

}  // namespace lodestone::server
