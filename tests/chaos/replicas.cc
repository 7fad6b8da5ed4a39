#include "tests/chaos/replicas.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "grpcpp/client_context.h"
#include "proto/admin.grpc.pb.h"
#include "proto/coordinator.grpc.pb.h"

namespace lodestone::chaos {
namespace {

constexpr uint32_t kMessageBytesMax = 4 << 20;
constexpr int kAnswerMs = 1'000;
constexpr int kVerifyMs = 30'000;

std::chrono::system_clock::time_point In(int ms) {
  return std::chrono::system_clock::now() + std::chrono::milliseconds(ms);
}

// Not through its proxy.
std::shared_ptr<grpc::Channel> Connect(int port) {
  return MakeChannel(absl::StrCat("127.0.0.1:", port), kMessageBytesMax);
}

}  // namespace

std::shared_ptr<grpc::Channel> Replicas::ChannelTo(uint32_t server) {
  auto& [port, channel] = channels_[server];
  if (channel == nullptr || port != cluster_->PortOf(server)) {
    port = cluster_->PortOf(server);
    channel = Connect(port);
  }
  return channel;
}

absl::StatusOr<ShardMap> Replicas::Map() {
  if (!cluster_->Listens(0)) return absl::UnavailableError("ps 0 does not run");
  grpc::ClientContext context;
  context.set_deadline(In(kAnswerMs));
  v1::RouteRequest request;
  request.set_role(v1::ROLE_WORKER);
  v1::RouteResponse response;
  const auto stub = v1::Coordinator::NewStub(ChannelTo(0));
  LODESTONE_RETURN_IF_ERROR(FromGrpc(stub->Route(&context, request, &response)));
  return ShardMap::FromProto(response);
}

absl::Status Replicas::InSync() {
  uint32_t in_sync = 0, followed = 0, followers = 1;
  for (uint32_t server = 0; server < cluster_->servers(); ++server) {
    if (!cluster_->Serves(server)) return absl::UnavailableError(absl::StrCat("ps ", server, " does not serve"));
    grpc::ClientContext context;
    context.set_deadline(In(kAnswerMs));
    v1::StatusResponse status;
    const auto stub = v1::Admin::NewStub(ChannelTo(server));
    LODESTONE_RETURN_IF_ERROR(
        Annotate(FromGrpc(stub->Status(&context, v1::StatusRequest(), &status)), absl::StrCat("ps ", server)));
    in_sync += status.replication().shards_in_sync();
    followed += status.replication().shards_followed();
    if (server > 0) continue;
    followers = status.cluster().replicas() - 1;
    if (status.cluster().shards_in_sync() != shards_) {
      return absl::UnavailableError(
          absl::StrCat("the coordinator knows of ", status.cluster().shards_in_sync(), " shards in sync"));
    }
    for (const v1::MemberStatus& member : status.cluster().servers()) {
      if (!member.alive()) return absl::UnavailableError(absl::StrCat("ps ", member.index(), " has not joined again"));
    }
  }
  if (in_sync == shards_ && followed == shards_ * followers) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("the owners know of ", in_sync, " shards in sync, and the followers of ", followed));
}

std::vector<int> Replicas::Ports() const {
  std::vector<int> ports;
  for (uint32_t server = 0; server < cluster_->servers(); ++server) {
    if (cluster_->Listens(server)) ports.push_back(cluster_->PortOf(server));
  }
  return ports;
}

absl::StatusOr<Replicas::Comparison> Replicas::Verify(const std::vector<int>& ports) {
  Comparison comparison;
  for (const int port : ports) {
    grpc::ClientContext context;
    context.set_deadline(In(kVerifyMs));
    v1::VerifyReplicasResponse response;
    const auto stub = v1::Admin::NewStub(Connect(port));
    LODESTONE_RETURN_IF_ERROR(Annotate(FromGrpc(stub->VerifyReplicas(&context, v1::VerifyReplicasRequest(), &response)),
                                       "comparing replicas"));
    for (const auto& shard : response.shards()) {
      if (!shard.missing().empty()) {
        comparison.missing.push_back(absl::StrCat("shard ", shard.shard(), ": ", shard.missing()));
      } else if (shard.owner_checksum() == shard.follower_checksum()) {
        ++comparison.same;
      } else {
        comparison.different.push_back(absl::StrCat("shard ", shard.shard(), " at version ", shard.version(),
                                                    " is another one at its follower, ps ", shard.follower()));
      }
    }
  }
  return comparison;
}

}  // namespace lodestone::chaos
