// The load of a broadcast, one sender and many receivers: through Client::Subscribe, and over plain sockets as the
// limit of that. And the pushes of the same table by a client that does not subscribe.
//
// A pusher sends a whole dense table's gradient; the server sends the table to all subscribers, of which the pusher is
// one. It keeps order.depth pushes ahead of what it has received. Subscribers that are slower than it skip to the
// newest, in both.
//
// The outcome's operations are bytes received (of values; PlainPushLoad's are pushes); its latencies, of the pusher
// alone, are the times from a push to the arrival of its values.
//
// Thread safety: a load belongs to one thread.
#pragma once

#include <cstdint>

#include "proto/config.pb.h"
#include "tools/bench/harness/peer.h"
#include "tools/bench/load/raw_socket.h"

namespace lodestone::bench {

// A subscription to a dense table "broadcast" of `bytes` that is sent after every push.
Peer::MakeLoad BroadcastLoad(const v1::Config& config, uint64_t bytes, bool pusher);

// Pushes of that table until acknowledged, order.depth outstanding, by a client that is no subscriber.
Peer::MakeLoad PlainPushLoad(const v1::Config& config, uint64_t bytes);

// Takes messages of `bytes` from pushers' connections and sends each, or a newer one, to all others, until the process
// ends. One thread, which never waits for one connection alone.
void ServeFanout(const Listener& listener, uint64_t bytes);

// A subscriber of ServeFanout.
Peer::MakeLoad FanoutLoad(const Listener& listener, uint64_t bytes, bool pusher);

}  // namespace lodestone::bench
