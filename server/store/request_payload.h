// The numbers of a push or a pull, as they came.
#pragma once

#include <optional>
#include <utility>

#include "common/wire/message.h"

namespace lodestone::server {

struct Numbers {
  Numbers() = default;
  Numbers(Payload all) : payload(std::move(all)) {}  // NOLINT: what comes without a list of keys.

  Payload payload;
  // The keys of all rows parts, in order, which do not lie in `payload` then (KeyList in parameter_server.proto).
  std::optional<Payload> keys;
};

}  // namespace lodestone::server
