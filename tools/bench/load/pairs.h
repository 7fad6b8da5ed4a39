// A server and its clients that can be measured again and again: ours, and the limit's.
//
// Not thread-safe. The processes end with the object.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/bench/harness/local_ps.h"
#include "tools/bench/harness/measure.h"
#include "tools/bench/harness/peer.h"
#include "tools/bench/load/client_load.h"
#include "tools/bench/load/raw_socket.h"

namespace lodestone::bench {

// The limit's: raw sockets.
class RawPair {
 public:
  // `memory_bytes`: what each side sends from and receives into, see raw_load.h.
  static absl::StatusOr<std::unique_ptr<RawPair>> Start(Transport transport, uint32_t clients, size_t memory_bytes);
  // Of ServeFanout: a pusher, which subscribes, and further subscribers.
  static absl::StatusOr<std::unique_ptr<RawPair>> StartFanout(uint32_t subscribers, uint64_t bytes);
  ~RawPair();
  RawPair(const RawPair&) = delete;
  RawPair& operator=(const RawPair&) = delete;

  // The first `clients` clients at work.
  absl::StatusOr<Sample> Measure(uint32_t clients, const Order& order, int window_ms) const;

 private:
  RawPair() = default;

  Listener listener_;
  std::unique_ptr<Peer> server_;
  std::vector<std::unique_ptr<Peer>> clients_;  // End before the server.
};

// The limit's of rows over gRPC: a minimal server, see minimal_load.h, and a client.
class MinimalPair {
 public:
  static absl::StatusOr<std::unique_ptr<MinimalPair>> Start(const RowsWork& work);

  absl::StatusOr<Sample> Measure(const Order& order, int window_ms) const;

 private:
  MinimalPair() = default;

  std::unique_ptr<Peer> server_;
  std::vector<std::unique_ptr<Peer>> clients_;  // One, which ends before the server.
};

// Ours: a ps and clients.
class PsPair {
 public:
  // `make_load` is called with each client's number and the configuration to connect with.
  using MakeLoad = std::function<Peer::MakeLoad(uint32_t client, const v1::Config& config)>;
  static absl::StatusOr<std::unique_ptr<PsPair>> Start(const Options& options, uint32_t shards, uint32_t clients,
                                                       const MakeLoad& make_load);

  absl::StatusOr<Sample> Measure(uint32_t clients, const Order& order, int window_ms) const;
  // Resident memory of the ps now, in bytes; 0: it does not tell.
  uint64_t ServerBytes() const;

 private:
  PsPair() = default;

  std::unique_ptr<LocalPs> ps_;
  std::vector<std::unique_ptr<Peer>> clients_;  // End before the ps.
};

}  // namespace lodestone::bench
