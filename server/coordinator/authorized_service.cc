#include "server/coordinator/authorized_service.h"

#include "common/base/status.h"
#include "common/rpc/grpc_status.h"

namespace lodestone::server {
namespace {

// Ends a call.
grpc::ServerUnaryReactor* EndWith(const absl::Status& status, grpc::CallbackServerContext* context) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Caller>> GuardedCoordinator::AdminBehind(const grpc::CallbackServerContext& context,
                                                                        const char* method, const char* what) const {
  LODESTONE_ASSIGN_OR_RETURN(std::shared_ptr<Caller> caller, access_->Identify(CallOf(context)));
  LODESTONE_RETURN_IF_ERROR(caller->CheckRole(v1::Identity::ADMIN, method, what));
  return caller;
}

grpc::ServerUnaryReactor* GuardedCoordinator::Join(grpc::CallbackServerContext* context, const v1::JoinRequest* request,
                                                   v1::JoinResponse* response) {
  if (request->role() != v1::ROLE_WORKER) {
    constexpr char kJoin[] = "/lodestone.v1.Coordinator/Join";
    const auto admin = AdminBehind(*context, kJoin, "Join as a server");
    if (!admin.ok()) return EndWith(admin.status(), context);
    (*admin)->NoteAdmitted(kJoin);
  }
  return guarded_->Join(context, request, response);
}

grpc::ServerUnaryReactor* GuardedCoordinator::Heartbeat(grpc::CallbackServerContext* context,
                                                        const v1::HeartbeatRequest* request,
                                                        v1::HeartbeatResponse* response) {
  if (request->has_server() || is_server_(request->incarnation())) {
    const auto admin = AdminBehind(*context, "/lodestone.v1.Coordinator/Heartbeat", "Heartbeat of a server");
    if (!admin.ok()) return EndWith(admin.status(), context);
  }
  return guarded_->Heartbeat(context, request, response);
}

}  // namespace lodestone::server
