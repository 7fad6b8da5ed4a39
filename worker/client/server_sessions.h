// The sessions of this worker, or of a range of samples that it has: which servers have got the incarnation and the
// tables from it. Normally all of them; one that was away when the tables were created gets them from the ps whose
// shards it follows, or when it turns a call back.
//
// Thread-safe. Callbacks run on a connection's thread, or that of Open.
//
// The channels must be cancelled before this is destroyed, unless it is a range's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/base/types.h"
#include "proto/parameter_server.pb.h"
#include "proto/table.pb.h"

namespace lodestone::worker {

class ServerChannel;

// Whether a ps that answers a call with this may not know the worker or the tables.
inline bool IsUnknownThere(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsNotFound(status);
}

class ServerSessions : public std::enable_shared_from_this<ServerSessions> {
 public:
  // `channels`, by server, must outlive this.
  ServerSessions(Incarnation incarnation, std::span<const std::unique_ptr<ServerChannel>> channels,
                 bool of_range = false);

  // `specs` have been created at `servers`, and nowhere else.
  void Add(const std::vector<v1::TableSpec>& specs, const std::set<uint32_t>& servers);

  // EnsureTablesRequest.orders of sessions that are opened from now on.
  void FollowOrders(uint64_t orders);

  // Those of a range of samples: at first no server knows it. Nothing that it sends changes a table's settings.
  std::shared_ptr<ServerSessions> ForRange(Incarnation range);

  // Whether `server` knows all tables.
  bool IsOpen(uint32_t server) const { return servers_[server].open.load(std::memory_order_acquire); }

  // Closes the session of `server`, which may have lost it, and those of ranges.
  void Forget(uint32_t server);

  // Sends `server` all tables, if its session is not open, and calls `done` when it knows them.
  using Done = std::function<void(const absl::Status&)>;
  void Open(uint32_t server, Done done);

 private:
  struct Server {
    std::atomic<bool> open{false};
    // Guarded by mu_.
    std::vector<Done> waiting;  // Not empty: a call is in flight.
    bool forgotten = false;     // Since that was sent: its answer may be that of a former life.
  };

  void OnAnswer(uint32_t server, int tables, const absl::Status& status);

  const std::span<const std::unique_ptr<ServerChannel>> channels_;
  const bool of_range_;
  std::vector<Server> servers_;  // Their number is constant.

  Mutex mu_;
  v1::EnsureTablesRequest request_ ABSL_GUARDED_BY(mu_);  // All tables.
  std::set<std::string> names_ ABSL_GUARDED_BY(mu_);
  std::vector<std::weak_ptr<ServerSessions>> ranges_ ABSL_GUARDED_BY(mu_);  // As long as anything uses them.
};

}  // namespace lodestone::worker
