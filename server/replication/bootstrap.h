// The beginning of one follower's stream: sends it what comes before the updates, on a thread of its own. That is
// sessions, tables, and of each shard what it lacks: updates that are kept in memory, else those that the log of this
// ps has on the disk (catch_up.h), else the state.
//
// What it is made of and the stream outlive what is sent; the destructor waits for the thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/simulation.h"
#include "proto/replication.pb.h"

namespace lodestone::server {

class CopyPace;
class FollowStream;
class NewestUpdates;
class Replicator;
class Store;
class UpdateLog;

class Bootstrap {
 public:
  // Where what is sent comes from, and how.
  struct Sources {
    Replicator* replicator = nullptr;
    Store* store = nullptr;
    const NewestUpdates* newest = nullptr;
    CopyPace* pace = nullptr;
    int64_t stalled_ms_max = 0;                // A stream that takes nothing for so long is cut off.
    std::function<UpdateLog*()> updates = {};  // Of this ps; empty, or null: it keeps no log, or has none yet.
  };
  Bootstrap(Sources sources, std::shared_ptr<FollowStream> stream, v1::FollowStart start);
  ~Bootstrap() { thread_.join(); }

  // Whether the destructor returns at once.
  bool done() const { return done_.load(); }

 private:
  absl::Status Run();
  // Sessions and tables.
  void SendCatalog();
  // The shards that neither memory nor the log brings up.
  absl::StatusOr<std::vector<v1::ShardPosition>> SendUpdates();
  absl::Status SendState(const v1::ShardPosition& position);

  const Sources sources_;
  const std::shared_ptr<FollowStream> stream_;
  const v1::FollowStart start_;
  std::atomic<bool> done_{false};
  Thread thread_;  // Last: it uses all of the above.
};

}  // namespace lodestone::server
