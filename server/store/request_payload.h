// The payload of one push or pull as it was received: keys and gradients, not copied.
//
// Thread safety: a value. Ownership: keeps the received memory alive; views of it are valid as long as it exists.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>

#include "common/base/byte_view.h"
#include "common/wire/message.h"

namespace lodestone::server {

struct RequestPayload {
  RequestPayload() = default;
  RequestPayload(Payload all) : payload(std::move(all)) {}  // NOLINT: a request without a list of keys.

  // Bytes of keys and gradients, including keys that did not have to be sent.
  size_t size() const { return payload.size() + (keys.has_value() ? keys->size() : 0); }
  std::optional<ByteView> key_bytes() const {
    return keys.has_value() ? std::optional<ByteView>(keys->bytes()) : std::nullopt;
  }

  Payload payload;
  // The keys of all rows parts, in order, if they are not in `payload` (KeyList in parameter_server.proto).
  std::optional<Payload> keys;
};

}  // namespace lodestone::server
