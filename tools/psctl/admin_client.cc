#include "tools/psctl/admin_client.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "proto/admin.grpc.pb.h"

namespace lodestone {
namespace {

constexpr int kStatusTimeoutMs = 10'000;

void SetDeadline(int timeout_ms, grpc::ClientContext* context) {
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(timeout_ms));
}

absl::StatusOr<v1::StatusResponse> Ask(v1::Admin::Stub* stub, const std::string& address, int timeout_ms) {
  grpc::ClientContext context;
  SetDeadline(timeout_ms, &context);
  v1::StatusResponse response;
  const grpc::Status status = stub->Status(&context, v1::StatusRequest(), &response);
  if (status.ok()) return response;
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return absl::DeadlineExceededError(absl::StrCat("no ps answers at ", address, " within ", timeout_ms, " ms"));
  }
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return absl::UnimplementedError(absl::StrCat("what listens at ", address, " is no ps: ", status.error_message()));
  }
  return Annotate(FromGrpc(status), absl::StrCat("no ps answers at ", address));
}

}  // namespace

std::shared_ptr<grpc::Channel> ConnectTo(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt("grpc.enable_http_proxy", 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

absl::StatusOr<v1::StatusResponse> FetchStatus(const std::string& address, int timeout_ms) {
  return Ask(v1::Admin::NewStub(ConnectTo(address)).get(), address, timeout_ms);
}

absl::StatusOr<std::vector<ServerAddress>> FindServers(const std::string& address, int timeout_ms) {
  timeout_ms = std::min(timeout_ms, kStatusTimeoutMs);
  LODESTONE_ASSIGN_OR_RETURN(v1::StatusResponse status, FetchStatus(address, timeout_ms));
  if (!status.has_cluster() && !status.coordinator().empty() && status.coordinator() != address) {
    LODESTONE_ASSIGN_OR_RETURN(status, FetchStatus(std::string(status.coordinator()), timeout_ms));
  }
  if (!status.has_cluster()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the ps at ", address, " knows no coordinator yet, which would know the other servers"));
  }
  const v1::ClusterStatus& cluster = status.cluster();
  if (static_cast<uint32_t>(cluster.servers_size()) < cluster.servers_expected()) {
    return absl::UnavailableError(absl::StrCat("only ", cluster.servers_size(), " of the cluster's ",
                                               cluster.servers_expected(), " servers have joined"));
  }
  std::vector<ServerAddress> servers;
  for (const v1::MemberStatus& server : cluster.servers()) servers.push_back({server.index(), server.peer()});
  std::sort(servers.begin(), servers.end(), [](const auto& a, const auto& b) { return a.server < b.server; });
  return servers;
}

absl::StatusOr<v1::CheckpointResponse> RequestCheckpoint(const std::string& address, const std::string& name,
                                                         int timeout_ms) {
  const std::unique_ptr<v1::Admin::Stub> stub = v1::Admin::NewStub(ConnectTo(address));
  grpc::ClientContext context;
  SetDeadline(timeout_ms, &context);
  v1::CheckpointRequest request;
  request.set_name(name);
  v1::CheckpointResponse response;
  const grpc::Status status = stub->Checkpoint(&context, request, &response);
  if (status.ok()) return response;
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return absl::DeadlineExceededError(absl::StrCat("the ps at ", address, " has not written it within ", timeout_ms,
                                                    " ms (--timeout-ms); it may still do so"));
  }
  return Annotate(FromGrpc(status), absl::StrCat("the ps at ", address));
}

absl::StatusOr<v1::RollbackResponse> RequestRollback(const std::string& address, const v1::RollbackRequest& request,
                                                     int timeout_ms) {
  const std::unique_ptr<v1::Admin::Stub> stub = v1::Admin::NewStub(ConnectTo(address));
  grpc::ClientContext context;
  SetDeadline(timeout_ms, &context);
  v1::RollbackResponse response;
  const grpc::Status status = stub->Rollback(&context, request, &response);
  if (status.ok()) return response;
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return absl::DeadlineExceededError(absl::StrCat("the ps at ", address, " has not gone back within ", timeout_ms,
                                                    " ms (--timeout-ms); it may still do so"));
  }
  return Annotate(FromGrpc(status), absl::StrCat("the ps at ", address));
}

absl::StatusOr<v1::VerifyReplicasResponse> RequestVerifyReplicas(const std::string& address, int timeout_ms) {
  const std::unique_ptr<v1::Admin::Stub> stub = v1::Admin::NewStub(ConnectTo(address));
  grpc::ClientContext context;
  SetDeadline(timeout_ms, &context);
  v1::VerifyReplicasResponse response;
  const grpc::Status status = stub->VerifyReplicas(&context, v1::VerifyReplicasRequest(), &response);
  if (status.ok()) return response;
  return Annotate(FromGrpc(status), absl::StrCat("the ps at ", address));
}

StatusPoller::StatusPoller(std::string address, int every_ms)
    : address_(std::move(address)), every_ms_(every_ms), thread_([this] { Run(); }) {}

StatusPoller::~StatusPoller() {
  {
    MutexLock lock(&mutex_);
    stop_ = true;
    stop_changed_.NotifyAll();
  }
  thread_.join();
}

std::optional<v1::StatusResponse> StatusPoller::Take() {
  MutexLock lock(&mutex_);
  return std::exchange(newest_, std::nullopt);
}

void StatusPoller::Run() {
  const std::unique_ptr<v1::Admin::Stub> stub = v1::Admin::NewStub(ConnectTo(address_));
  for (;;) {
    absl::StatusOr<v1::StatusResponse> response = Ask(stub.get(), address_, every_ms_);
    const auto next = std::chrono::steady_clock::now() + std::chrono::milliseconds(every_ms_);
    MutexLock lock(&mutex_);
    if (response.ok()) newest_ = *std::move(response);
    while (!stop_ && std::chrono::steady_clock::now() < next) stop_changed_.WaitUntil(&mutex_, next);
    if (stop_) return;
  }
}

}  // namespace lodestone
