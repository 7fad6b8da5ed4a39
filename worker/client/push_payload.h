// The payload of a push's message: gradients packed as the wire wants them.
//
// Thread safety: pure.
#pragma once

#include <memory>
#include <span>

#include "worker/client/pull_values.h"
#include "worker/client/request_router.h"
#include "worker/client/types.h"
#include "worker/rpc/call_payload.h"

namespace lodestone::worker {

// A message of a pull that goes with one of a push in one call, and is done after it.
struct PullRider {
  std::shared_ptr<PullValues> values;  // Null: none.
  ShardMessage message;
};

// The payload of `message`, and of the pull that goes with it (null: none). Borrowed gradients are referenced, and
// `release` is destroyed once nothing refers to them; the rest is copied.
CallPayload MakePushPayload(const ShardMessage& message, std::span<const DenseGradient> dense,
                            std::span<const RowGradients> rows, const std::shared_ptr<void>& release,
                            const PullRider* rider = nullptr);

}  // namespace lodestone::worker
