// The Admin service: the status of this ps and, where it serves the coordinator, of the cluster; and an operator's
// commands.
//
// Thread-safe. Must outlive the gRPC server that it is registered with.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/timer.h"
#include "proto/admin.grpc.pb.h"
#include "server/auth/access.h"
#include "server/auth/audit_log.h"

namespace lodestone::server {

class AdminService final : public v1::Admin::CallbackService {
 public:
  // The operations behind the methods. Those marked "long" run on a thread of the service's own, one of them at a time;
  // the others on any thread, several at a time, and must not block.
  struct Handlers {
    // Fills in the status of this ps. Required.
    std::function<void(v1::StatusResponse*)> fill_status;
    // Checks the name of a new checkpoint: INVALID_ARGUMENT if it cannot be one. Null: every name is accepted.
    std::function<absl::Status(const std::string& name)> check_checkpoint_name;
    // Long: writes a checkpoint of that name (empty: as a periodic one), and returns when it is complete. Null: this ps
    // keeps nothing on disk.
    std::function<absl::StatusOr<v1::CheckpointResponse>(const std::string& name)> checkpoint;
    // Long: removes this ps's part of a checkpoint, if it is there. Null as `checkpoint`.
    std::function<absl::Status(const std::string& name)> remove_checkpoint;
    // Long: restores a table's earlier contents. Null: this ps keeps nothing on disk.
    std::function<absl::StatusOr<v1::RollbackResponse>(const v1::RollbackRequest&)> roll_back;
    // Long: compares the shards that this ps owns with their followers' copies. Null: shards have no followers.
    std::function<absl::StatusOr<v1::VerifyReplicasResponse>()> verify_replicas;
    // What an operator decides of shards that nobody serves: `done` gets the answer, perhaps within the call.
    template <typename Response>
    using Done = std::function<void(absl::StatusOr<Response>)>;
    std::function<void(const v1::PromoteRequest&, Done<v1::PromoteResponse> done)> promote;
    std::function<void(const v1::AcceptLossRequest&, Done<v1::AcceptLossResponse> done)> accept_loss;
    std::function<void(const v1::MoveRequest&, Done<v1::MoveResponse> done)> move;
    std::function<void(const v1::DrainRequest&, Done<v1::DrainResponse> done)> drain;
    std::function<void(const v1::PauseTrainingRequest&, Done<v1::PauseTrainingResponse> done)> pause_training;
    // Changes settings of a table; `done` likewise.
    std::function<void(const v1::SetTableRequest&, Done<v1::SetTableResponse> done)> set_table;
    // The events after one, and the history of training. Null: there are none.
    std::function<v1::EventsResponse(uint64_t after_id)> events;
    std::function<v1::HistoryResponse()> history;
  };
  // The destructor waits for the long operation under way.
  explicit AdminService(Handlers handlers) : handlers_(std::move(handlers)) {}

  // Call before the service is registered. `audit`: the log of commands, their callers and results; null: none is kept.
  // `access`: resolves the identity of a caller; null: callers have none. Both must outlive the service.
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
  grpc::ServerUnaryReactor* Promote(grpc::CallbackServerContext* context, const v1::PromoteRequest* request,
                                    v1::PromoteResponse* response) override;
  grpc::ServerUnaryReactor* AcceptLoss(grpc::CallbackServerContext* context, const v1::AcceptLossRequest* request,
                                       v1::AcceptLossResponse* response) override;
  grpc::ServerUnaryReactor* Move(grpc::CallbackServerContext* context, const v1::MoveRequest* request,
                                 v1::MoveResponse* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context, const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override;
  grpc::ServerUnaryReactor* PauseTraining(grpc::CallbackServerContext* context, const v1::PauseTrainingRequest* request,
                                          v1::PauseTrainingResponse* response) override;
  grpc::ServerUnaryReactor* SetTable(grpc::CallbackServerContext* context, const v1::SetTableRequest* request,
                                     v1::SetTableResponse* response) override;
  grpc::ServerUnaryReactor* Events(grpc::CallbackServerContext* context, const v1::EventsRequest* request,
                                   v1::EventsResponse* response) override;
  grpc::ServerUnaryReactor* History(grpc::CallbackServerContext* context, const v1::HistoryRequest* request,
                                    v1::HistoryResponse* response) override;

 private:
  // Writes the result of a command to the audit log.
  using Note = std::function<void(const absl::Status&)>;
  Note NoteOf(const grpc::CallbackServerContext& context, const char* method, std::string what) const;

  // Passes a decision on, and finishes the call with its answer. `what`: for the audit log.
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* Decide(
      grpc::CallbackServerContext* context, const char* method, std::string what,
      const std::function<void(const Request&, std::function<void(absl::StatusOr<Response>)>)>& decide,
      const Request& request, Response* response);

  // OK, and the service is busy, if the operation may begin now.
  absl::Status BeginCheckpoint(const std::string& name);
  absl::Status BeginRollback(const v1::RollbackRequest& request);
  absl::Status BeginVerification();
  // Takes busy_; UNAVAILABLE if another operation has it.
  absl::Status TakeBusy();
  // Runs the operation that has begun on a thread of its own, and then finishes the call.
  template <typename Response>
  void Run(std::function<absl::StatusOr<Response>()> run, Response* response, grpc::ServerUnaryReactor* reactor,
           Note note);

  // Constant once calls come.
  const Handlers handlers_;
  Audit* audit_ = nullptr;    // May be null.
  Access* access_ = nullptr;  // May be null.

  // Synchronises itself.
  std::atomic<bool> busy_{false};    // A long operation is under way.
  std::atomic<uint64_t> paused_{0};  // The token of the pause that was noted last.

  Timer operations_{nullptr, Timer::AtEnd::kRun};  // The thread of the long operations. Last: they use the above.
};

}  // namespace lodestone::server
