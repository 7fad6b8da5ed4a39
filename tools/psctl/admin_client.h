// Asks a ps for its status, to write a checkpoint, to bring a table back, and to compare replicas.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "grpcpp/channel.h"
#include "proto/admin.pb.h"

namespace lodestone {

// A channel to `address`, for tools: with gRPC's own settings, but no proxy.
std::shared_ptr<grpc::Channel> ConnectTo(const std::string& address);

// The status of the ps at `address` (host:port). UNAVAILABLE, with the address, if nothing answers there in time.
absl::StatusOr<v1::StatusResponse> FetchStatus(const std::string& address, int timeout_ms);

// A server of a cluster.
struct ServerAddress {
  uint32_t server = 0;
  std::string address;
};
// The servers of the cluster of the ps at `address`, by index, as its coordinator knows them. An error unless all have
// joined.
absl::StatusOr<std::vector<ServerAddress>> FindServers(const std::string& address, int timeout_ms);

// Has the ps at `address` write a checkpoint, and waits until it is complete. Errors name the address.
absl::StatusOr<v1::CheckpointResponse> RequestCheckpoint(const std::string& address, const std::string& name,
                                                         int timeout_ms);

// Has the ps at `address` bring a table back, and waits until it has. Errors name the address.
absl::StatusOr<v1::RollbackResponse> RequestRollback(const std::string& address, const v1::RollbackRequest& request,
                                                     int timeout_ms);

// Has the ps at `address` compare its shards with their followers' copies. Errors name the address.
absl::StatusOr<v1::VerifyReplicasResponse> RequestVerifyReplicas(const std::string& address, int timeout_ms);

// Keeps asking one ps, on a thread of its own. Thread-safe.
class StatusPoller {
 public:
  // Asks `address` every `every_ms`.
  StatusPoller(std::string address, int every_ms);
  ~StatusPoller();  // Waits for the question under way, at most about `every_ms`.
  StatusPoller(const StatusPoller&) = delete;
  StatusPoller& operator=(const StatusPoller&) = delete;

  // The newest answer that Take has not returned before; nullopt if none has come since.
  std::optional<v1::StatusResponse> Take();

 private:
  void Run();

  const std::string address_;
  const int every_ms_;

  Mutex mutex_;
  CondVar stop_changed_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<v1::StatusResponse> newest_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // Last: it uses everything above.
};

}  // namespace lodestone
