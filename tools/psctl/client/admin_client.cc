#include "tools/psctl/client/admin_client.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/grpc_status.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "proto/admin.grpc.pb.h"
#include "proto/coordinator.grpc.pb.h"
#include "tools/psctl/client/client_security.h"
#include "tools/psctl/text/exit_code.h"

namespace lodestone::psctl {
namespace {

constexpr int kStatusTimeoutMs = 10'000;

// Whether gRPC's message says that the port speaks HTTP/1, as that of the page and the metrics does.
bool IsHttpPort(const std::string& message) { return absl::StrContains(message, "http1.x server"); }

// The reason for which there is no connection, in a user's words: "Connection refused".
std::string ReasonOf(const std::string& message) {
  if (absl::StrContains(message, "Domain name not found")) return "the name is not known here (DNS, /etc/hosts)";
  constexpr absl::string_view kPrefix = "Failed to connect to remote host: ";
  const size_t at = message.rfind(kPrefix.data());
  return at == std::string::npos ? message : message.substr(at + kPrefix.size());
}

// Whether a server accepts connections there and closes them: it may expect TLS, or another TLS.
bool HangsUp(const std::string& message) {
  return absl::StrContains(message, "Socket closed") || absl::StrContains(message, "handshake failed") ||
         absl::StrContains(message, "Connection reset");
}
constexpr char kMayBeTls[] =
    ". If it is served by TLS, psctl needs to know security.authorities (and security.certificate and key, if the ps "
    "asks "
    "for them), by --config or --set";

template <typename Request, typename Response>
using Method = grpc::Status (v1::Admin::Stub::*)(grpc::ClientContext*, const Request&, Response*);

// `late`: what is said if there is no answer in time; empty: that there is none.
template <typename Request, typename Response>
absl::StatusOr<Response> Call(const std::string& address, const std::shared_ptr<grpc::Channel>& channel,
                              Method<Request, Response> method, const Request& request, int timeout_ms,
                              absl::string_view late = "") {
  const std::unique_ptr<v1::Admin::Stub> stub = v1::Admin::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(timeout_ms));
  Response response;
  const grpc::Status status = (stub.get()->*method)(&context, request, &response);
  if (status.ok()) return response;
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED && !late.empty()) {
    return absl::DeadlineExceededError(absl::StrCat("the ps at ", address, " has not ", late, " within ",
                                                    MillisText(timeout_ms), " (--timeout); it may still do so"));
  }
  return ErrorOfCall(status, address, timeout_ms, channel.get());
}

template <typename Request, typename Response>
absl::StatusOr<Response> Call(const std::string& address, Method<Request, Response> method, const Request& request,
                              int timeout_ms, absl::string_view late = "") {
  return Call(address, ConnectTo(address), method, request, timeout_ms, late);
}

}  // namespace

std::shared_ptr<grpc::Channel> ConnectTo(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt("grpc.enable_http_proxy", 0);
  return ChannelWith(UsedCredentials(), address, arguments);
}

absl::Status ErrorOfCall(const grpc::Status& status, const std::string& address, int timeout_ms,
                         grpc::Channel* channel) {
  switch (status.error_code()) {
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return absl::DeadlineExceededError(
          absl::StrCat("no ps answers at ", address, " within ", MillisText(timeout_ms), " (--timeout)"));
    case grpc::StatusCode::UNIMPLEMENTED:
      return absl::UnimplementedError(
          absl::StrCat("what listens at ", address, " is no ps, or one of another version: ", status.error_message()));
    case grpc::StatusCode::UNAVAILABLE:
      if (channel->GetState(false) == GRPC_CHANNEL_READY) break;  // It is the ps that says so.
      if (IsHttpPort(status.error_message())) {
        return UnreachableError(absl::StrCat(address,
                                             " is an HTTP port (the page, metrics); --address takes the port of "
                                             "server.listen, which psctl local and the ps's log print"));
      }
      return UnreachableError(absl::StrCat("no ps answers at ", address, ": ", ReasonOf(status.error_message()),
                                           ". Does one run there? Its log says where it listens (\"listens on=... "
                                           "address=...\"); --address names another",
                                           HangsUp(status.error_message()) ? kMayBeTls : ""));
    default:
      break;
  }
  return Annotate(FromGrpc(status), absl::StrCat("the ps at ", address));
}

absl::StatusOr<v1::StatusResponse> FetchStatus(const std::string& address, int timeout_ms) {
  return Call(address, &v1::Admin::Stub::Status, v1::StatusRequest(), timeout_ms);
}

absl::StatusOr<v1::EventsResponse> FetchEvents(const std::string& address, uint64_t after_id, int timeout_ms) {
  v1::EventsRequest request;
  request.set_after_id(after_id);
  return Call(address, &v1::Admin::Stub::Events, request, timeout_ms);
}

namespace {

// The status of the ps that serves the coordinator of the cluster of the ps at `address`; that becomes its address.
absl::StatusOr<v1::StatusResponse> FetchCoordinator(std::string* address, int timeout_ms) {
  timeout_ms = std::min(timeout_ms, kStatusTimeoutMs);
  LODESTONE_ASSIGN_OR_RETURN(v1::StatusResponse status, FetchStatus(*address, timeout_ms));
  if (!status.has_cluster() && !status.coordinator().empty() && status.coordinator() != *address) {
    *address = status.coordinator();
    LODESTONE_ASSIGN_OR_RETURN(status, FetchStatus(*address, timeout_ms));
  }
  if (status.has_cluster()) return status;
  return absl::FailedPreconditionError(
      absl::StrCat("the ps at ", *address, " knows no coordinator yet, which would know the other servers"));
}

}  // namespace

int ServersIn(const v1::ClusterStatus& cluster) {
  return static_cast<int>(
      std::count_if(cluster.servers().begin(), cluster.servers().end(), [](const auto& one) { return !one.out(); }));
}

absl::StatusOr<std::vector<ServerAddress>> FindServers(const std::string& address, int timeout_ms) {
  std::string coordinator = address;
  LODESTONE_ASSIGN_OR_RETURN(const v1::StatusResponse status, FetchCoordinator(&coordinator, timeout_ms));
  const v1::ClusterStatus& cluster = status.cluster();
  std::vector<ServerAddress> servers;
  for (const v1::MemberStatus& server : cluster.servers()) {
    if (!server.out()) servers.push_back({server.index(), server.peer()});
  }
  if (servers.size() < cluster.servers_expected()) {
    return absl::UnavailableError(absl::StrCat("only ", servers.size(), " of the cluster's ",
                                               cluster.servers_expected(), " servers have joined"));
  }
  std::sort(servers.begin(), servers.end(), [](const auto& a, const auto& b) { return a.server < b.server; });
  return servers;
}

absl::StatusOr<ClusterAddress> FindCluster(const std::string& address, int timeout_ms) {
  ClusterAddress found{.coordinator = address, .name = ""};
  LODESTONE_ASSIGN_OR_RETURN(const v1::StatusResponse status, FetchCoordinator(&found.coordinator, timeout_ms));
  found.name = status.cluster().name();
  return found;
}

absl::StatusOr<v1::CheckpointResponse> RequestCheckpoint(const std::string& address, const std::string& name,
                                                         int timeout_ms, bool again) {
  v1::CheckpointRequest request;
  request.set_name(name);
  if (again) request.set_removes(name);
  return Call(address, &v1::Admin::Stub::Checkpoint, request, timeout_ms, "written it");
}

absl::StatusOr<v1::RollbackResponse> RequestRollback(const std::string& address, const v1::RollbackRequest& request,
                                                     int timeout_ms) {
  return Call(address, &v1::Admin::Stub::Rollback, request, timeout_ms, "gone back");
}

absl::StatusOr<v1::SetTableResponse> RequestSetTable(const std::string& address, const v1::SetTableRequest& request,
                                                     int timeout_ms) {
  return Call(address, &v1::Admin::Stub::SetTable, request, timeout_ms, "changed it");
}

absl::StatusOr<v1::VerifyReplicasResponse> RequestVerifyReplicas(const std::string& address, int timeout_ms) {
  return Call(address, &v1::Admin::Stub::VerifyReplicas, v1::VerifyReplicasRequest(), timeout_ms,
              "compared its replicas");
}

namespace {

// Asks the ps that serves the coordinator.
template <typename Request, typename Response>
absl::StatusOr<Response> CallCoordinator(const std::string& address, Method<Request, Response> method,
                                         const Request& request, int timeout_ms) {
  std::string coordinator = address;
  LODESTONE_RETURN_IF_ERROR(FetchCoordinator(&coordinator, timeout_ms).status());
  return Call(coordinator, method, request, timeout_ms, "saved it");
}

}  // namespace

absl::StatusOr<v1::PromoteResponse> RequestPromote(const std::string& address, uint32_t server, int timeout_ms) {
  v1::PromoteRequest request;
  request.set_server(server);
  return CallCoordinator(address, &v1::Admin::Stub::Promote, request, timeout_ms);
}

absl::StatusOr<v1::AcceptLossResponse> RequestAcceptLoss(const std::string& address, uint32_t server, int timeout_ms) {
  v1::AcceptLossRequest request;
  request.set_server(server);
  return CallCoordinator(address, &v1::Admin::Stub::AcceptLoss, request, timeout_ms);
}

absl::StatusOr<v1::MoveResponse> RequestMove(const std::string& address, const v1::MoveRequest& request,
                                             int timeout_ms) {
  return CallCoordinator(address, &v1::Admin::Stub::Move, request, timeout_ms);
}

absl::StatusOr<v1::DrainResponse> RequestDrain(const std::string& address, const v1::DrainRequest& request,
                                               int timeout_ms) {
  return CallCoordinator(address, &v1::Admin::Stub::Drain, request, timeout_ms);
}

absl::StatusOr<v1::PauseTrainingResponse> RequestPauseTraining(const std::string& address,
                                                               const v1::PauseTrainingRequest& request,
                                                               int timeout_ms) {
  return CallCoordinator(address, &v1::Admin::Stub::PauseTraining, request, timeout_ms);
}

absl::StatusOr<v1::ClusterStatus> FetchCluster(const std::string& address, int timeout_ms) {
  std::string coordinator = address;
  LODESTONE_ASSIGN_OR_RETURN(const v1::StatusResponse status, FetchCoordinator(&coordinator, timeout_ms));
  return status.cluster();
}

absl::StatusOr<std::vector<uint32_t>> FetchOwners(const std::string& address, int timeout_ms) {
  std::string coordinator = address;
  LODESTONE_RETURN_IF_ERROR(FetchCoordinator(&coordinator, timeout_ms).status());
  const std::shared_ptr<grpc::Channel> channel = ConnectTo(coordinator);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(timeout_ms));
  v1::RouteRequest request;
  request.set_role(v1::ROLE_WORKER);
  v1::RouteResponse route;
  const grpc::Status status = v1::Coordinator::NewStub(channel)->Route(&context, request, &route);
  if (!status.ok()) return ErrorOfCall(status, coordinator, timeout_ms, channel.get());
  return std::vector<uint32_t>(route.owners().begin(), route.owners().end());
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
  const std::shared_ptr<grpc::Channel> channel = ConnectTo(address_);
  for (;;) {
    absl::StatusOr<v1::StatusResponse> response =
        Call(address_, channel, &v1::Admin::Stub::Status, v1::StatusRequest(), every_ms_);
    const auto next = std::chrono::steady_clock::now() + std::chrono::milliseconds(every_ms_);
    MutexLock lock(&mutex_);
    if (response.ok()) newest_ = *std::move(response);
    while (!stop_ && std::chrono::steady_clock::now() < next) stop_changed_.WaitUntil(&mutex_, next);
    if (stop_) return;
  }
}

}  // namespace lodestone::psctl
