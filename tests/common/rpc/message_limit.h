// The limit of messages on channels that tests make.
#pragma once

#include <cstdint>

namespace lodestone {

inline constexpr uint32_t kMessageBytesMax = 64 << 20;  // server.message_max_bytes, by default.

}  // namespace lodestone
