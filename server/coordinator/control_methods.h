// The short methods of the Coordinator service, on which leases and failovers depend, without gRPC: ControlService
// calls them on a thread of its own.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "proto/coordinator.pb.h"

namespace lodestone::server {

class ControlMethods {
 public:
  virtual ~ControlMethods() = default;

  // Called once, perhaps within the method, on any thread. Until then context, request and response must live.
  using Done = std::function<void(const absl::Status&)>;
  virtual void HandleHeartbeat(const grpc::ServerContextBase& context, const v1::HeartbeatRequest& request,
                               v1::HeartbeatResponse* response, Done done) = 0;
  virtual void HandleRoute(const grpc::ServerContextBase& context, const v1::RouteRequest& request,
                           v1::RouteResponse* response, Done done) = 0;
  virtual void HandleReportSync(const grpc::ServerContextBase& context, const v1::ReportSyncRequest& request,
                                v1::ReportSyncResponse* response, Done done) = 0;
};

}  // namespace lodestone::server
