// The beginning of one follower's stream: sends it what comes before the updates (sessions, tables, and the state of
// each shard that it does not hold) on a thread of its own.
//
// The replicator, the store and the thread outlive what is sent; the destructor waits for the thread.
#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "proto/replication.pb.h"
#include "server/replication/follow_stream.h"
#include "server/shard/shard.h"

namespace lodestone::server {

class Replicator;
class Store;

class Bootstrap {
 public:
  Bootstrap(Replicator* replicator, const Store* store, std::shared_ptr<FollowStream> stream, v1::FollowStart start);
  ~Bootstrap() { thread_.join(); }

  // Whether the destructor returns at once.
  bool done() const { return done_.load(); }

 private:
  void Run();
  // Sessions and tables.
  void SendCatalog();
  absl::Status SendState(const Shard::State& state);

  Replicator* const replicator_;
  const Store* const store_;
  const std::shared_ptr<FollowStream> stream_;
  const v1::FollowStart start_;
  std::atomic<bool> done_{false};
  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace lodestone::server
