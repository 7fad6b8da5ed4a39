// The machine's limits: memcpy, and request/reply over plain sockets between two processes.
//
// An exchange is a request of `request_bytes` and a reply of `reply_bytes`, each after a head of 16 bytes. The client
// sends from, and receives into, memory that it goes through in turn as a trainer goes through its tensors; the server
// receives into one buffer, since nothing is done with what it gets, and sends from memory that it goes through.
// Blocking sockets, one thread per connection on either side; the client has a second one that only sends where it
// would otherwise wait for a server that waits for it.
//
// Thread safety: a load belongs to one thread.
#pragma once

#include <cstddef>
#include <functional>

#include "tools/bench/harness/peer.h"
#include "tools/bench/load/raw_socket.h"

namespace lodestone::bench {

// Answers the listener's connections, each on a thread, until the process ends. `memory_bytes`: what replies are sent
// from.
void ServeRaw(const Listener& listener, size_t memory_bytes);

// Exchanges with ServeRaw, order.depth at a time. REQUIRES: no request or reply is larger than memory_bytes.
Peer::MakeLoad RawLoad(const Listener& listener, size_t memory_bytes);

// Copies order.request_bytes from one half of memory_bytes to the other, going through both.
Peer::MakeLoad MemcpyLoad(size_t memory_bytes);

}  // namespace lodestone::bench
