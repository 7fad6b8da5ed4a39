#include "server/status.h"

#include <unistd.h>

#include <fstream>

#include "common/status.h"
#include "common/version.h"

namespace lodestone {

uint64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t pages_total = 0;
  uint64_t pages_resident = 0;
  if (!(statm >> pages_total >> pages_resident)) return 0;
  return pages_resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

void FillProcess(const ProcessIdentity& identity, v1::ServerStatus* status) {
  status->set_index(identity.index);
  status->set_address(identity.address);
  status->set_incarnation(identity.incarnation);
  status->set_version(kVersion);
  status->set_uptime_seconds(
      std::chrono::duration<double>(std::chrono::steady_clock::now() - identity.started).count());
  status->set_resident_bytes(ResidentBytes());
}

grpc::ServerUnaryReactor* AdminService::Status(grpc::CallbackServerContext* context, const v1::StatusRequest*,
                                               v1::StatusResponse* response) {
  for (const Filler& fill : fillers_) fill(response);
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::Checkpoint(grpc::CallbackServerContext* context,
                                                   const v1::CheckpointRequest* request,
                                                   v1::CheckpointResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  checkpointer_(request->name(), [reactor, response](absl::StatusOr<v1::CheckpointResponse> result) {
    if (result.ok()) *response = *std::move(result);
    reactor->Finish(ToGrpc(result.status()));
  });
  return reactor;
}

}  // namespace lodestone
