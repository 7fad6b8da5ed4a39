// The coordinator of a ps: served for all its life (the ps with index 0), while it is elected (coordinator.etcd), or
// never.
//
// Thread-safe after Prepare. Must outlive the gRPC server that its service is registered with; call Shutdown before
// that server's.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/time_source.h"
#include "common/wire/shard_map.h"
#include "grpcpp/server_builder.h"
#include "proto/admin.pb.h"
#include "proto/config.pb.h"
#include "proto/coordinator_state.pb.h"
#include "server/auth/access.h"
#include "server/coordinator/control_service.h"
#include "server/coordinator/elected_coordinator.h"
#include "server/coordinator/service.h"

namespace lodestone::server {

class CoordinatorHost {
 public:
  // `on_change` is called when the coordinator begins and ends to be served here.
  CoordinatorHost(const v1::Config& config, const TimeSource* time, std::function<void(bool serves)> on_change);

  // The checkpoints of a ps with a folder, as far as they are the coordinator's. Used until Shutdown.
  struct Checkpoints {
    // Has them keep what `state` returns.
    std::function<void(std::function<v1::CoordinatorState()> state)> keep;
    // What the newest one keeps; nullopt: nothing.
    std::function<absl::StatusOr<std::optional<v1::CoordinatorState>>()> kept;
  };
  // Takes up what the last life of the coordinator has left, if it is to be found in the folder of this ps (nullopt:
  // there is none). Leases begin here: call it just before calls can come. DATA_LOSS and so on if it cannot be used.
  // With `access`, which may be null, calls in the name of a server need the role admin.
  absl::Status Prepare(std::optional<Checkpoints> checkpoints, Access* access);
  // Whether this ps may serve the coordinator, now or once it is elected.
  bool may_serve() const { return own_.has_value() || elected_.has_value(); }
  // Registers the service, if it may; Listen takes calls from then on, and StopListening returns when all have ended.
  // REQUIRES: the gRPC server has been made; has shut down.
  void Register(grpc::ServerBuilder* builder);
  void Listen();
  void StopListening();
  // Begins to serve, or to run for election, for a ps that others reach at `address`.
  void Start(const std::string& address);

  // A newer map.
  void SetMap(const ShardMap& map);

  // Whether this ps always serves the coordinator.
  bool always() const { return own_.has_value(); }

  void Shutdown();
  void FillStatus(v1::StatusResponse* status) const;
  // What has happened in the cluster, and how training has gone on; nullopt if this ps does not serve the coordinator.
  std::optional<v1::EventsResponse> Events(uint64_t after_id) const;
  std::optional<v1::HistoryResponse> TellHistory() const;
  // What an operator decides, as CoordinatorService's; UNAVAILABLE if this ps does not serve the coordinator.
  void Promote(const v1::PromoteRequest& request, std::function<void(absl::StatusOr<v1::PromoteResponse>)> done);
  void AcceptLoss(const v1::AcceptLossRequest& request,
                  std::function<void(absl::StatusOr<v1::AcceptLossResponse>)> done);
  void Move(const v1::MoveRequest& request, std::function<void(absl::StatusOr<v1::MoveResponse>)> done);
  void Drain(const v1::DrainRequest& request, std::function<void(absl::StatusOr<v1::DrainResponse>)> done);
  void PauseTraining(const v1::PauseTrainingRequest& request,
                     std::function<void(absl::StatusOr<v1::PauseTrainingResponse>)> done);

 private:
  absl::Status PrepareOwn();
  absl::Status PrepareElected();
  // What checkpoints keep of the coordinator, for one that has lost its state.
  absl::StatusOr<std::optional<v1::CoordinatorState>> StateOfCheckpoints() const;

  // Constant after Prepare.
  const v1::Config config_;
  const TimeSource* const time_;
  const std::function<void(bool serves)> on_change_;
  std::optional<Checkpoints> checkpoints_;  // Nullopt where the ps has no folder.
  Access* access_ = nullptr;                // Null where every caller may do everything.

  // At most one of them.
  std::optional<CoordinatorService> own_;
  std::optional<ElectedCoordinator> elected_;
  std::optional<ControlService> control_;  // Of that one.
};

}  // namespace lodestone::server
