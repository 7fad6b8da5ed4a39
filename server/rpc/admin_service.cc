#include "server/rpc/admin_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/grpc_status.h"

namespace lodestone::server {
namespace {

absl::Status NothingOnDisk() {
  return absl::FailedPreconditionError(
      "this ps keeps nothing on disk; set server.data_dir or checkpoint.dir and restart it");
}

// Finishes a call, and passes its status to `note`.
grpc::ServerUnaryReactor* End(grpc::ServerUnaryReactor* reactor, const absl::Status& status,
                              const std::function<void(const absl::Status&)>& note) {
  note(status);
  reactor->Finish(ToGrpc(status));
  return reactor;
}

template <typename Request>
std::string NameOfPs(const Request& request) {
  return absl::StrCat("ps ", request.server());
}

}  // namespace

grpc::ServerUnaryReactor* AdminService::Status(grpc::CallbackServerContext* context, const v1::StatusRequest*,
                                               v1::StatusResponse* response) {
  handlers_.fill_status(response);
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::Events(grpc::CallbackServerContext* context, const v1::EventsRequest* request,
                                               v1::EventsResponse* response) {
  if (handlers_.events != nullptr) *response = handlers_.events(request->after_id());
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::History(grpc::CallbackServerContext* context, const v1::HistoryRequest*,
                                                v1::HistoryResponse* response) {
  if (handlers_.history != nullptr) *response = handlers_.history();
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

AdminService::Note AdminService::NoteOf(const grpc::CallbackServerContext& context, const char* method,
                                        std::string what) const {
  if (audit_ == nullptr) return [](const absl::Status&) {};
  const IncomingCall call = CallOf(context);
  Audit::Entry entry{"", call.peer, call.agent, method, std::move(what)};
  if (access_ != nullptr) entry.identity = access_->NameOf(call);
  return [this, entry = std::move(entry)](const absl::Status& status) {
    Audit::Entry ended = entry;
    if (!status.ok()) absl::StrAppend(&ended.what, ended.what.empty() ? "" : ": ", status.message());
    audit_->Write(ended, absl::StatusCodeToString(status.code()));
  };
}

absl::Status AdminService::BeginCheckpoint(const std::string& name) {
  if (!name.empty() && handlers_.check_checkpoint_name != nullptr) {
    LODESTONE_RETURN_IF_ERROR(handlers_.check_checkpoint_name(name));
  }
  if (handlers_.checkpoint == nullptr) return NothingOnDisk();
  return TakeBusy();
}

absl::Status AdminService::BeginRollback(const v1::RollbackRequest& request) {
  if (request.table().empty()) return absl::InvalidArgumentError("the request names no table; set `table`");
  if (request.to_case() == v1::RollbackRequest::TO_NOT_SET) {
    return absl::InvalidArgumentError("the request has neither a version nor a checkpoint to go back to; set one");
  }
  if (handlers_.roll_back == nullptr) return NothingOnDisk();
  return TakeBusy();
}

absl::Status AdminService::BeginVerification() {
  if (handlers_.verify_replicas == nullptr) {
    return absl::FailedPreconditionError(
        "shards have no followers to compare with: cluster.replicas is 1; set it to 2 or more");
  }
  return TakeBusy();
}

absl::Status AdminService::TakeBusy() {
  if (!busy_.exchange(true)) return absl::OkStatus();
  return absl::UnavailableError(
      "this ps is busy with a checkpoint, a rollback or a comparison of replicas; try again when that is done");
}

template <typename Response>
void AdminService::Run(std::function<absl::StatusOr<Response>()> run, Response* response,
                       grpc::ServerUnaryReactor* reactor, Note note) {
  // Not joined here: the operation before may still be writing its line of the audit log.
  operations_.After(0, [this, run = std::move(run), response, reactor, note = std::move(note)] {
    absl::StatusOr<Response> done = run();
    busy_.store(false);
    if (done.ok()) *response = *std::move(done);
    End(reactor, done.status(), note);
  });
}

grpc::ServerUnaryReactor* AdminService::Checkpoint(grpc::CallbackServerContext* context,
                                                   const v1::CheckpointRequest* request,
                                                   v1::CheckpointResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  Note note = NoteOf(*context, "/lodestone.v1.Admin/Checkpoint", request->name());
  if (const absl::Status status = BeginCheckpoint(request->name()); !status.ok()) return End(reactor, status, note);
  Run<v1::CheckpointResponse>(
      [this, name = request->name(), removes = request->removes()]() -> absl::StatusOr<v1::CheckpointResponse> {
        if (!removes.empty()) LODESTONE_RETURN_IF_ERROR(handlers_.remove_checkpoint(removes));
        return handlers_.checkpoint(name);
      },
      response, reactor, std::move(note));
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::Rollback(grpc::CallbackServerContext* context,
                                                 const v1::RollbackRequest* request, v1::RollbackResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  Note note = NoteOf(*context, "/lodestone.v1.Admin/Rollback", request->ShortDebugString());
  if (const absl::Status status = BeginRollback(*request); !status.ok()) return End(reactor, status, note);
  Run<v1::RollbackResponse>([this, request = *request] { return handlers_.roll_back(request); }, response, reactor,
                            std::move(note));
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::VerifyReplicas(grpc::CallbackServerContext* context,
                                                       const v1::VerifyReplicasRequest*,
                                                       v1::VerifyReplicasResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  Note note = NoteOf(*context, "/lodestone.v1.Admin/VerifyReplicas", "");
  if (const absl::Status status = BeginVerification(); !status.ok()) return End(reactor, status, note);
  Run<v1::VerifyReplicasResponse>(handlers_.verify_replicas, response, reactor, std::move(note));
  return reactor;
}

template <typename Request, typename Response>
grpc::ServerUnaryReactor* AdminService::Decide(
    grpc::CallbackServerContext* context, const char* method, std::string what,
    const std::function<void(const Request&, std::function<void(absl::StatusOr<Response>)>)>& decide,
    const Request& request, Response* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  Note note = NoteOf(*context, method, std::move(what));
  if (decide == nullptr) return End(reactor, absl::UnavailableError("this ps serves no coordinator"), note);
  decide(request, [reactor, response, note = std::move(note)](absl::StatusOr<Response> done) {
    if (done.ok()) *response = *done;
    End(reactor, done.status(), note);
  });
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::Promote(grpc::CallbackServerContext* context, const v1::PromoteRequest* request,
                                                v1::PromoteResponse* response) {
  return Decide(context, "/lodestone.v1.Admin/Promote", NameOfPs(*request), handlers_.promote, *request, response);
}

grpc::ServerUnaryReactor* AdminService::AcceptLoss(grpc::CallbackServerContext* context,
                                                   const v1::AcceptLossRequest* request,
                                                   v1::AcceptLossResponse* response) {
  return Decide(context, "/lodestone.v1.Admin/AcceptLoss", NameOfPs(*request), handlers_.accept_loss, *request,
                response);
}

grpc::ServerUnaryReactor* AdminService::Move(grpc::CallbackServerContext* context, const v1::MoveRequest* request,
                                             v1::MoveResponse* response) {
  return Decide(context, "/lodestone.v1.Admin/Move", NameOfPs(*request), handlers_.move, *request, response);
}

grpc::ServerUnaryReactor* AdminService::Drain(grpc::CallbackServerContext* context, const v1::DrainRequest* request,
                                              v1::DrainResponse* response) {
  return Decide(context, "/lodestone.v1.Admin/Drain", NameOfPs(*request), handlers_.drain, *request, response);
}

grpc::ServerUnaryReactor* AdminService::PauseTraining(grpc::CallbackServerContext* context,
                                                      const v1::PauseTrainingRequest* request,
                                                      v1::PauseTrainingResponse* response) {
  // It is asked again and again: its beginning and its end are what an operator has done.
  if (!request->end() && paused_.exchange(request->token()) == request->token() && handlers_.pause_training) {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    handlers_.pause_training(*request, [reactor, response](absl::StatusOr<v1::PauseTrainingResponse> done) {
      if (done.ok()) *response = *std::move(done);
      reactor->Finish(ToGrpc(done.status()));
    });
    return reactor;
  }
  return Decide(context, "/lodestone.v1.Admin/PauseTraining", request->end() ? "end" : "", handlers_.pause_training,
                *request, response);
}

grpc::ServerUnaryReactor* AdminService::SetTable(grpc::CallbackServerContext* context,
                                                 const v1::SetTableRequest* request, v1::SetTableResponse* response) {
  return Decide(context, "/lodestone.v1.Admin/SetTable", request->ShortDebugString(), handlers_.set_table, *request,
                response);
}

}  // namespace lodestone::server
