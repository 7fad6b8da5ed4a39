// The Admin service: what this ps knows about itself and, where the coordinator is, about the cluster; and what an
// operator asks it to do.
//
// Thread-safe. Must outlive the gRPC server that it is registered with.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/types.h"
#include "proto/admin.grpc.pb.h"

namespace lodestone {

// What does not change while a ps process runs.
struct ProcessIdentity {
  uint32_t index = 0;
  std::string address;
  Incarnation incarnation = 0;
  std::chrono::steady_clock::time_point started;
};

// Adds index, address, incarnation, version, uptime and resident memory.
void FillProcess(const ProcessIdentity& identity, v1::ServerStatus* status);

// Resident memory of this process; 0 if the system does not tell.
uint64_t ResidentBytes();

class AdminService final : public v1::Admin::CallbackService {
 public:
  // Adds what one part of the ps knows. Called on any thread, several at a time.
  using Filler = std::function<void(v1::StatusResponse*)>;
  // Writes a checkpoint and calls back, on any thread. Empty: there is nowhere to write one to.
  using CheckpointDone = std::function<void(absl::StatusOr<v1::CheckpointResponse>)>;
  using Checkpointer = std::function<void(const std::string& name, CheckpointDone done)>;
  AdminService(std::vector<Filler> fillers, Checkpointer checkpointer)
      : fillers_(std::move(fillers)), checkpointer_(std::move(checkpointer)) {}

  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* context, const v1::StatusRequest* request,
                                   v1::StatusResponse* response) override;
  grpc::ServerUnaryReactor* Checkpoint(grpc::CallbackServerContext* context, const v1::CheckpointRequest* request,
                                       v1::CheckpointResponse* response) override;

 private:
  const std::vector<Filler> fillers_;
  const Checkpointer checkpointer_;
};

}  // namespace lodestone
