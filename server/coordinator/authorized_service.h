// The Coordinator service, for callers of whom some may not do everything: what is said in the name of a server needs
// the role admin. The rest is judged at the door (access.h).
//
// Thread-safe. What it guards must outlive it, and it the gRPC server that it is registered with.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "proto/coordinator.grpc.pb.h"
#include "server/auth/access.h"
#include "server/auth/authorized_caller.h"

namespace lodestone::server {

class GuardedCoordinator final : public v1::Coordinator::CallbackService {
 public:
  // `is_server`: whether an incarnation is a server's.
  GuardedCoordinator(v1::Coordinator::CallbackService* guarded, std::function<bool(Incarnation)> is_server,
                     Access* access)
      : guarded_(guarded), is_server_(std::move(is_server)), access_(access) {}

  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext* context, const v1::JoinRequest* request,
                                 v1::JoinResponse* response) override;
  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext* context, const v1::HeartbeatRequest* request,
                                      v1::HeartbeatResponse* response) override;
  grpc::ServerUnaryReactor* AwaitClock(grpc::CallbackServerContext* context, const v1::AwaitClockRequest* request,
                                       v1::AwaitClockResponse* response) override {
    return guarded_->AwaitClock(context, request, response);
  }
  grpc::ServerUnaryReactor* Route(grpc::CallbackServerContext* context, const v1::RouteRequest* request,
                                  v1::RouteResponse* response) override {
    return guarded_->Route(context, request, response);
  }
  grpc::ServerUnaryReactor* ReportSync(grpc::CallbackServerContext* context, const v1::ReportSyncRequest* request,
                                       v1::ReportSyncResponse* response) override {
    return guarded_->ReportSync(context, request, response);
  }

 private:
  // Who calls, if he is an admin.
  absl::StatusOr<std::shared_ptr<Caller>> AdminBehind(const grpc::CallbackServerContext& context, const char* method,
                                                      const char* what) const;

  v1::Coordinator::CallbackService* const guarded_;
  const std::function<bool(Incarnation)> is_server_;
  Access* const access_;
};

}  // namespace lodestone::server
