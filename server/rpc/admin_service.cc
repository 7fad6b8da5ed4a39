#include "server/rpc/admin_service.h"

#include <unistd.h>

#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/rpc/grpc_status.h"

namespace lodestone::server {
namespace {

absl::Status NothingOnDisk() {
  return absl::FailedPreconditionError(
      "this ps keeps nothing on disk: set server.data_dir, or checkpoint.dir, and start it again");
}

absl::Status Busy() {
  return absl::UnavailableError(
      "a checkpoint of this ps is being written, or a table of it goes back, or its followers' copies are compared; "
      "try again when that is done");
}

// Ends a call, and tells `note` how.
grpc::ServerUnaryReactor* End(grpc::ServerUnaryReactor* reactor, const absl::Status& status,
                              const std::function<void(const absl::Status&)>& note) {
  note(status);
  reactor->Finish(ToGrpc(status));
  return reactor;
}

}  // namespace

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
  status->set_http(identity.http);
  status->set_incarnation(identity.incarnation);
  status->set_version(kCommit[0] == '\0' ? kVersion : VersionText());
  status->set_uptime_seconds(
      std::chrono::duration<double>(std::chrono::steady_clock::now() - identity.started).count());
  status->set_resident_bytes(ResidentBytes());
}

v1::ServerProgress ProgressOf(const v1::StatusResponse& status) {
  const v1::ServerStatus& server = status.server();
  v1::ServerProgress progress;
  progress.set_resident_bytes(server.resident_bytes());
  progress.set_table_bytes(server.table_bytes());
  progress.set_pushes_per_second(server.pushes_per_second());
  progress.set_pulls_per_second(server.pulls_per_second());
  progress.set_pushes_refused(server.pushes_refused());
  progress.set_http(server.http());
  uint64_t lag_records = 0, rows = 0;
  for (const v1::FollowerStatus& follower : status.replication().followers()) lag_records += follower.lag_records();
  for (const v1::TableStatus& table : status.tables()) rows += table.rows();
  progress.set_lag_records(lag_records);
  progress.set_rows(rows);
  return progress;
}

grpc::ServerUnaryReactor* AdminService::Status(grpc::CallbackServerContext* context, const v1::StatusRequest*,
                                               v1::StatusResponse* response) {
  for (const Filler& fill : fillers_) fill(response);
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::Events(grpc::CallbackServerContext* context, const v1::EventsRequest* request,
                                               v1::EventsResponse* response) {
  if (events_ != nullptr) *response = events_(request->after_id());
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::History(grpc::CallbackServerContext* context, const v1::HistoryRequest*,
                                                v1::HistoryResponse* response) {
  if (history_ != nullptr) *response = history_();
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

absl::Status AdminService::BeginCheckpoint() {
  if (checkpoint_ == nullptr) return NothingOnDisk();
  return busy_.exchange(true) ? Busy() : absl::OkStatus();
}

absl::Status AdminService::BeginRollback(const v1::RollbackRequest& request) {
  if (request.table().empty()) return absl::InvalidArgumentError("no table is named");
  if (request.to_case() == v1::RollbackRequest::TO_NOT_SET) {
    return absl::InvalidArgumentError("neither a version nor a checkpoint is given to go back to");
  }
  if (rollback_ == nullptr) return NothingOnDisk();
  return busy_.exchange(true) ? Busy() : absl::OkStatus();
}

template <typename Response>
void AdminService::Run(std::function<absl::StatusOr<Response>()> run, Response* response,
                       grpc::ServerUnaryReactor* reactor, Note note) {
  background_.Submit([this, run = std::move(run), response, reactor, note = std::move(note)] {
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
  if (const absl::Status status = BeginCheckpoint(); !status.ok()) return End(reactor, status, note);
  Run<v1::CheckpointResponse>([this, name = request->name()] { return checkpoint_(name); }, response, reactor,
                              std::move(note));
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::Rollback(grpc::CallbackServerContext* context,
                                                 const v1::RollbackRequest* request, v1::RollbackResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  Note note = NoteOf(*context, "/lodestone.v1.Admin/Rollback", request->ShortDebugString());
  if (const absl::Status status = BeginRollback(*request); !status.ok()) return End(reactor, status, note);
  Run<v1::RollbackResponse>([this, request = *request] { return rollback_(request); }, response, reactor,
                            std::move(note));
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::VerifyReplicas(grpc::CallbackServerContext* context,
                                                       const v1::VerifyReplicasRequest*,
                                                       v1::VerifyReplicasResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  Note note = NoteOf(*context, "/lodestone.v1.Admin/VerifyReplicas", "");
  if (verify_ == nullptr) {
    return End(reactor, absl::FailedPreconditionError("shards have no followers here: cluster.replicas is 1"), note);
  }
  if (busy_.exchange(true)) return End(reactor, Busy(), note);
  Run<v1::VerifyReplicasResponse>(verify_, response, reactor, std::move(note));
  return reactor;
}

}  // namespace lodestone::server
