// The readiness of a ps: whether it takes calls (it serves), and whether it counts as one more copy for those that end
// other ps by it, as probes and rolling updates do (it is ready): only once all shards of the cluster had all their
// copies, also those that the others made of one another's while it was away. gRPC's health service says both.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "grpcpp/health_check_service_interface.h"
#include "proto/admin.pb.h"

namespace lodestone::server {

class Readiness {
 public:
  // Of the ps that messages call `name`. `time` must outlive this.
  Readiness(std::string name, const TimeSource* time) : name_(std::move(name)), time_(time) {}

  // Calls can come: `health` says from now on what is so. It must outlive this. REQUIRES: before all below, but Check,
  // FillStatus and Stop.
  void Tell(grpc::HealthCheckServiceInterface* health);
  // Serves its shards, as long as it is well (SetWell), and is ready at once unless it `wants_copies`.
  void Begin(bool wants_copies);
  // Is well, and takes calls once it has begun, or not: they cannot be made durable for a while.
  void SetWell(bool well);
  // An answer to a heartbeat: so many shards of the cluster lack a copy.
  void NoteToSync(uint32_t shards);
  // Whether this ps serves the coordinator.
  void SetCoordinator(bool serves);
  // The ps ends.
  void Stop();

  // OK if it is ready.
  absl::Status Check() const;
  // Adds what it waits for.
  void FillStatus(v1::StatusResponse* status) const;

 private:
  void TellHealth();
  bool serving() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return began_ && well_; }
  grpc::HealthCheckServiceInterface* health() const;

  // Constant after construction.
  const std::string name_;
  const TimeSource* const time_;

  Mutex health_mu_;  // One after the other tells. Stands above mu_.
  mutable Mutex mu_;
  grpc::HealthCheckServiceInterface* health_ ABSL_GUARDED_BY(mu_) = nullptr;  // Null before Tell.
  bool began_ ABSL_GUARDED_BY(mu_) = false;
  bool well_ ABSL_GUARDED_BY(mu_) = true;
  // All shards had all their copies, once since it began; and how many had not, as far as is known.
  bool synced_ ABSL_GUARDED_BY(mu_) = false;
  uint32_t to_sync_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t began_ms_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace lodestone::server
