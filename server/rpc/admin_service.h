// The Admin service: what this ps knows about itself and, where the coordinator is, about the cluster; and what an
// operator asks it to do.
//
// Thread-safe. Must outlive the gRPC server that it is registered with.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "proto/admin.grpc.pb.h"
#include "server/auth/access.h"
#include "server/auth/audit_log.h"
#include "server/shard/executor.h"

namespace lodestone::server {

// What does not change while a ps process runs.
struct ProcessIdentity {
  uint32_t index = 0;
  std::string address;
  std::string http;  // The HTTP port, where others reach it; empty: there is none.
  Incarnation incarnation = 0;
  std::chrono::steady_clock::time_point started;
};

// Adds index, address, incarnation, version, uptime and resident memory.
void FillProcess(const ProcessIdentity& identity, v1::ServerStatus* status);

// What a heartbeat says of a ps, of what its status says.
v1::ServerProgress ProgressOf(const v1::StatusResponse& status);

// Resident memory of this process; 0 if the system does not tell.
uint64_t ResidentBytes();

class AdminService final : public v1::Admin::CallbackService {
 public:
  // Adds what one part of the ps knows. Called on any thread, several at a time.
  using Filler = std::function<void(v1::StatusResponse*)>;
  // Writes a checkpoint of that name (empty: as a periodic one) and returns when it is complete. Called on a thread of
  // the service's own, once at a time.
  using Checkpointer = std::function<absl::StatusOr<v1::CheckpointResponse>(const std::string& name)>;
  // Brings a table back. Called as a Checkpointer is, and not while one runs.
  using Rollbacker = std::function<absl::StatusOr<v1::RollbackResponse>(const v1::RollbackRequest&)>;
  // Compares what this ps owns with its followers' copies. Called as a Checkpointer is.
  using Verifier = std::function<absl::StatusOr<v1::VerifyReplicasResponse>()>;
  // What has happened, and how training has gone on. Called as a Filler is.
  using EventTeller = std::function<v1::EventsResponse(uint64_t after_id)>;
  using HistoryTeller = std::function<v1::HistoryResponse()>;
  // `checkpoint` and `rollback`: null if this ps keeps nothing on disk. `verify`: null if shards have no followers.
  // `events` and `history`: null if there is nothing to tell.
  explicit AdminService(std::vector<Filler> fillers, Checkpointer checkpoint = nullptr, Rollbacker rollback = nullptr,
                        Verifier verify = nullptr, EventTeller events = nullptr, HistoryTeller history = nullptr)
      : fillers_(std::move(fillers)),
        checkpoint_(std::move(checkpoint)),
        rollback_(std::move(rollback)),
        verify_(std::move(verify)),
        events_(std::move(events)),
        history_(std::move(history)) {}

  // Before calls come: where it is written who has asked for what, and what became of it; and who knows who he is
  // (null: nobody does).
  void SetAudit(Audit* audit, Access* access) {
    audit_ = audit;
    access_ = access;
  }

  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* context, const v1::StatusRequest* request,
                                   v1::StatusResponse* response) override;
  grpc::ServerUnaryReactor* Checkpoint(grpc::CallbackServerContext* context, const v1::CheckpointRequest* request,
                                       v1::CheckpointResponse* response) override;
  grpc::ServerUnaryReactor* Rollback(grpc::CallbackServerContext* context, const v1::RollbackRequest* request,
                                     v1::RollbackResponse* response) override;
  grpc::ServerUnaryReactor* VerifyReplicas(grpc::CallbackServerContext* context,
                                           const v1::VerifyReplicasRequest* request,
                                           v1::VerifyReplicasResponse* response) override;
  grpc::ServerUnaryReactor* Events(grpc::CallbackServerContext* context, const v1::EventsRequest* request,
                                   v1::EventsResponse* response) override;
  grpc::ServerUnaryReactor* History(grpc::CallbackServerContext* context, const v1::HistoryRequest* request,
                                    v1::HistoryResponse* response) override;

 private:
  // Tells the audit log how a call ended.
  using Note = std::function<void(const absl::Status&)>;
  Note NoteOf(const grpc::CallbackServerContext& context, const char* method, std::string what) const;

  // OK if one may begin now.
  absl::Status BeginCheckpoint();
  absl::Status BeginRollback(const v1::RollbackRequest& request);
  // Runs what has begun in the background, and finishes the call.
  template <typename Response>
  void Run(std::function<absl::StatusOr<Response>()> run, Response* response, grpc::ServerUnaryReactor* reactor,
           Note note);

  // Constant once calls come.
  const std::vector<Filler> fillers_;
  const Checkpointer checkpoint_;
  const Rollbacker rollback_;
  const Verifier verify_;
  const EventTeller events_;
  const HistoryTeller history_;
  Audit* audit_ = nullptr;    // May be null.
  Access* access_ = nullptr;  // May be null.

  // Synchronise themselves.
  std::atomic<bool> busy_{false};                 // With something that takes long.
  Executor background_{Executor::Mode::kThread};  // Last: it uses everything above.
};

}  // namespace lodestone::server
