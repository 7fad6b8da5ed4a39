// The servers of the cluster as the client's units see them: a channel per server and this worker's identity there.
//
// A plain value; copies share what it points to, which must outlive them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "common/base/timer.h"
#include "common/base/types.h"
#include "common/wire/shard_map.h"
#include "worker/client/request_router.h"

namespace lodestone::worker {

class Rerouter;
class ServerChannel;
class ServerSessions;

struct ServerSet {
  std::function<std::shared_ptr<const ShardMap>()> map;      // The newest.
  std::span<const std::unique_ptr<ServerChannel>> channels;  // By server.
  Incarnation incarnation = 0;                               // Of this worker.
  MessageLimits limits;
  Timer* timer = nullptr;
  Rerouter* rerouter = nullptr;
  ServerSessions* sessions = nullptr;
  // Called with the error of a server that no longer knows this worker.
  std::function<void(const absl::Status&)> on_lost;
};

}  // namespace lodestone::worker
