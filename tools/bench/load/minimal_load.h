// The limit of rows over gRPC: the least that a parameter server and its client do. One flat table of rows that are
// added to (SGD), on one thread, through one stream; no shards, no checks, no log. Requests are made beforehand.
//
// A message is 8 bytes that say what it is, then keys (a pull), or keys and rows of floats (a push); the answer to a
// pull is rows in the order of the keys, to a push 8 bytes.
//
// Thread safety: a load belongs to one thread.
#pragma once

#include <string>

#include "tools/bench/harness/peer.h"
#include "tools/bench/load/client_load.h"

namespace lodestone::bench {

// Serves rows of `dim` floats at a free port of 127.0.0.1 until the process ends; writes the port to the pipe
// `port_fd`, as a uint16_t, once it listens.
void ServeMinimal(uint32_t dim, int port_fd);

// As RowsLoad with one table: the keys 0 … rows - 1 exist, operations take turns on sets of random ones, which repeat.
// Operations are ClientOperation::kPull, kPush and kPullThenPush.
Peer::MakeLoad MinimalLoad(const std::string& address, const RowsWork& work);

}  // namespace lodestone::bench
