// The broadcasts of a server: makes a Subscriber of each subscription, and serves the subscribers of a table when it
// has had its pushes or its time has come (Broadcast in table.proto), on a thread of its own: a push only says that
// tables are due.
//
// Thread-safe. The store must outlive the Broadcaster and all streams (that is, the gRPC server).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "proto/admin.pb.h"
#include "proto/parameter_server.pb.h"

namespace lodestone::server {

class DeltaSink;
class SharedSnapshots;
class Store;
class Subscriber;
class SubscriberSet;

class Broadcaster {
 public:
  // `subscribers_max`: streams at a time. Takes the store's broadcast listener.
  Broadcaster(Store* store, uint32_t subscribers_max);
  // Shuts down, then stops the thread.
  ~Broadcaster();
  Broadcaster(const Broadcaster&) = delete;
  Broadcaster& operator=(const Broadcaster&) = delete;

  // A subscriber that serves `sink` from its Start on. RESOURCE_EXHAUSTED if there are `subscribers_max`, UNAVAILABLE
  // before the server has its shards, and when it shuts down, INVALID_ARGUMENT without tables, and the store's errors
  // for its tables. After an error the sink is not touched.
  absl::StatusOr<std::shared_ptr<Subscriber>> Add(const v1::SubscribeRequest& request, std::string peer,
                                                  DeltaSink* sink);

  // Ends all streams with UNAVAILABLE, each after its write under way: this ps owns other shards now.
  void EndAll();
  // The same, and refuses new ones.
  void Shutdown();

  // About once a second: has subscribers served by what was set of their tables since, and, while some wait for memory,
  // ends the streams that are not read.
  void Tick();

  // Adds the subscribers, and sets server.broadcast_bytes and broadcast_pinned_bytes.
  void FillStatus(v1::StatusResponse* status) const;

 private:
  // Constant after construction.
  Store* const store_;
  const std::shared_ptr<std::atomic<uint64_t>> bytes_total_;  // Payload sent to all subscribers.
  const std::shared_ptr<SharedSnapshots> snapshots_;
  const std::shared_ptr<SubscriberSet> subscribers_;
  std::thread thread_;
};

}  // namespace lodestone::server
