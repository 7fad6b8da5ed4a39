// Client of the service Admin: asks a ps for its status, for what has happened, to write a checkpoint, to bring a table
// back, to compare replicas.
//
// Errors name the address. UNAVAILABLE that IsUnreachable (outcome.h), with what to check: nothing takes connections
// there. DEADLINE_EXCEEDED: no answer in time. Others are the ps's own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "grpcpp/channel.h"
#include "proto/admin.pb.h"

namespace lodestone::psctl {

// A channel to `address`, for tools: with gRPC's own settings, but no proxy, and what client_security.h says.
std::shared_ptr<grpc::Channel> ConnectTo(const std::string& address);

// `status` of a call to the ps at `address` with that time, over `channel`, in words for people.
absl::Status ErrorOfCall(const grpc::Status& status, const std::string& address, int timeout_ms,
                         grpc::Channel* channel);

// The status of the ps at `address` (host:port).
absl::StatusOr<v1::StatusResponse> FetchStatus(const std::string& address, int timeout_ms);

// A server of a cluster.
struct ServerAddress {
  uint32_t server = 0;
  std::string address;
};
// How many servers have joined, without those that are out.
int ServersIn(const v1::ClusterStatus& cluster);

// The servers of the cluster of the ps at `address` that are not out, by index, as its coordinator knows them. An error
// unless all have joined.
absl::StatusOr<std::vector<ServerAddress>> FindServers(const std::string& address, int timeout_ms);

// What each of these servers says to `ask`, by server: all are asked at the same time, on threads of their own. Part:
// an aggregate of server, address and an absl::StatusOr of the answer. An error if the servers cannot be known; those
// of single servers are in their parts.
template <typename Part, typename Ask>
absl::StatusOr<std::vector<Part>> AskServers(const std::string& address, int timeout_ms, const Ask& ask) {
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<ServerAddress> servers, FindServers(address, timeout_ms));
  std::vector<Part> parts(servers.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < servers.size(); ++i) {
    threads.emplace_back([&, i] { parts[i] = Part{servers[i].server, servers[i].address, ask(servers[i].address)}; });
  }
  for (std::thread& thread : threads) thread.join();
  return parts;
}

// What a client needs to know to read from a cluster.
struct ClusterAddress {
  std::string coordinator;  // host:port of the ps that serves it.
  std::string name;         // cluster.name.
};
// The cluster of the ps at `address`.
absl::StatusOr<ClusterAddress> FindCluster(const std::string& address, int timeout_ms);

// What has happened, as that ps knows it: after the event of that id.
absl::StatusOr<v1::EventsResponse> FetchEvents(const std::string& address, uint64_t after_id, int timeout_ms);

// Has the ps at `address` write a checkpoint, and waits until it is complete. `again`: in the place of its part of that
// name, if it has one.
absl::StatusOr<v1::CheckpointResponse> RequestCheckpoint(const std::string& address, const std::string& name,
                                                         int timeout_ms, bool again = false);

// Has the ps at `address` bring a table back, and waits until it has.
absl::StatusOr<v1::RollbackResponse> RequestRollback(const std::string& address, const v1::RollbackRequest& request,
                                                     int timeout_ms);

// Has the ps at `address` change settings of a table; without any it says what they are.
absl::StatusOr<v1::SetTableResponse> RequestSetTable(const std::string& address, const v1::SetTableRequest& request,
                                                     int timeout_ms);

// Has the ps at `address` compare its shards with their followers' copies.
absl::StatusOr<v1::VerifyReplicasResponse> RequestVerifyReplicas(const std::string& address, int timeout_ms);

// Has the coordinator of the cluster of the ps at `address` make a ps the owner of the unserved shards that it holds
// copies of, or serve what it has lost.
absl::StatusOr<v1::PromoteResponse> RequestPromote(const std::string& address, uint32_t server, int timeout_ms);
absl::StatusOr<v1::AcceptLossResponse> RequestAcceptLoss(const std::string& address, uint32_t server, int timeout_ms);
absl::StatusOr<v1::MoveResponse> RequestMove(const std::string& address, const v1::MoveRequest& request,
                                             int timeout_ms);
absl::StatusOr<v1::DrainResponse> RequestDrain(const std::string& address, const v1::DrainRequest& request,
                                               int timeout_ms);
// Has it have training pause, or go on.
absl::StatusOr<v1::PauseTrainingResponse> RequestPauseTraining(const std::string& address,
                                                               const v1::PauseTrainingRequest& request, int timeout_ms);
// What the coordinator of the cluster of a ps says of it.
absl::StatusOr<v1::ClusterStatus> FetchCluster(const std::string& address, int timeout_ms);

// The owner of each shard, as that coordinator tells those that read from the cluster.
absl::StatusOr<std::vector<uint32_t>> FetchOwners(const std::string& address, int timeout_ms);

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

}  // namespace lodestone::psctl
