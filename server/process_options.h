// What a configuration means for the parts of a ps.
//
// Thread safety: plain functions.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "common/base/time_source.h"
#include "proto/config.pb.h"
#include "server/auth/security.h"
#include "server/rpc/exchange.h"
#include "server/store/store.h"

namespace lodestone::server {

// INVALID_ARGUMENT for a place in the cluster, or addresses, that cannot be those of a ps.
absl::Status CheckProcessConfig(const v1::Config& config);

// `time` must outlive the store.
Store::Options StoreOptions(const v1::Config& config, const TimeSource* time);

// Says how many bytes CallMemory may hold: a part of server.memory_max_bytes (limits::kCallMemoryParts), or, where the
// tables leave more than that, up to four messages.
std::function<uint64_t()> CallMemoryBytes(const v1::Config& config, std::function<uint64_t()> table_bytes);

// How memory that workers of this machine offer is used; null: it is refused. `store` must outlive what is returned.
std::function<SharedUse()> SharedUseOf(const v1::Config& config, Security* security, const Store* store);

}  // namespace lodestone::server
