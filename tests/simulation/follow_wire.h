// Replication.Follow over the simulated network, at both ends: what gRPC is for FollowStream and Follower::Link in a
// ps.
//
// Used by one thread.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/replication/follow_call.h"
#include "server/replication/follow_stream.h"
#include "tests/simulation/network.h"

namespace lodestone::simulation {

// Begins a stream at its owner's end: makes a FollowStream over `wire`.
using OpenStream = std::function<std::shared_ptr<server::FollowStream>(server::FollowStream::Wire* wire)>;

// The owner's end: takes over side 1 of `line`. Keeps itself alive until all has ended, and calls `ended`
// then.
void TakeFollowCall(Network* network, const LineRef& line, const OpenStream& open, std::function<void()> ended);

// Who listens at an address now: its process, null if nobody does, and what takes a connection.
struct Listener {
  ProcessRef process;
  std::function<void(const LineRef& line)> take;
};

// The follower's end: a place of `caller`, which asks `find` at each call.
std::unique_ptr<server::FollowPlace> MakeFollowPlace(Network* network, const ProcessRef& caller,
                                                     std::function<Listener()> find);

}  // namespace lodestone::simulation
