// The one copy of received payload bytes: into a slice of its own.
#pragma once

#include <cstdint>

#include "common/base/byte_view.h"
#include "common/telemetry/copied_bytes.h"
#include "grpcpp/support/slice.h"

namespace lodestone::server {

// A copy of `bytes` in one run of memory of its own, counted in copied_bytes_metric.
inline grpc::Slice CopiedSlice(const ByteView& bytes) {
  grpc::Slice copy(bytes.size());
  bytes.CopyTo(const_cast<uint8_t*>(copy.begin()));  // Not shared yet.
  copied_bytes_metric.Add(bytes.size());
  return copy;
}

}  // namespace lodestone::server
