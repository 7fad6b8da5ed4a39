#include "server/status.h"

#include <unistd.h>

#include <fstream>

#include "common/status.h"
#include "common/version.h"
#include "server/checkpoint/manifest.h"

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

absl::Status AdminService::BeginCheckpoint(const std::string& name) {
  if (!name.empty()) LODESTONE_RETURN_IF_ERROR(CheckCheckpointName(name));
  if (checkpoint_ == nullptr) {
    return absl::FailedPreconditionError(
        "this ps keeps nothing on disk: set server.data_dir, or checkpoint.dir, and start it again");
  }
  if (writing_.exchange(true)) {
    return absl::UnavailableError("another checkpoint of this ps is being written; try again when it is done");
  }
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* AdminService::Checkpoint(grpc::CallbackServerContext* context,
                                                   const v1::CheckpointRequest* request,
                                                   v1::CheckpointResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  if (const absl::Status status = BeginCheckpoint(request->name()); !status.ok()) {
    reactor->Finish(ToGrpc(status));
    return reactor;
  }
  background_.Submit([this, name = request->name(), reactor, response] {
    absl::StatusOr<v1::CheckpointResponse> written = checkpoint_(name);
    writing_.store(false);
    if (written.ok()) *response = *std::move(written);
    reactor->Finish(ToGrpc(written.status()));
  });
  return reactor;
}

}  // namespace lodestone
