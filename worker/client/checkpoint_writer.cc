#include "worker/client/checkpoint_writer.h"

#include <chrono>
#include <future>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/base/time_source.h"
#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "common/wire/checkpoint_parts.h"
#include "proto/admin.grpc.pb.h"

namespace lodestone::worker {
namespace {

// A ps gets this long to write its part, and to end the one that it writes already.
constexpr int64_t kWriteMsMax = 10 * 60'000;
constexpr int64_t kBusyMsMax = 60'000;

absl::StatusOr<v1::CheckpointResponse> WriteAt(const std::string& address, uint32_t message_max_bytes,
                                               const CredentialsRef& credentials,
                                               const v1::CheckpointRequest& request) {
  const std::unique_ptr<v1::Admin::Stub> stub =
      v1::Admin::NewStub(MakeChannel(address, message_max_bytes, credentials));
  const SteadyTime time;
  const int64_t start_ms = time.NowMs();
  while (true) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(kWriteMsMax));
    v1::CheckpointResponse response;
    const absl::Status status = FromGrpc(stub->Checkpoint(&context, request, &response));
    if (status.ok()) return response;
    if (!absl::IsUnavailable(status) || time.NowMs() - start_ms > kBusyMsMax) return status;
    std::this_thread::sleep_for(std::chrono::milliseconds(limits::kRetryBackoffMinMs));
  }
}

}  // namespace

absl::Status WriteCheckpoints(const std::function<std::shared_ptr<const ShardMap>()>& newest_map,
                              uint32_t message_max_bytes, const CredentialsRef& credentials, const std::string& name,
                              const std::string& removes) {
  std::set<uint32_t> wrote;  // Servers that have a part of an attempt before.
  for (int attempt = 1;; ++attempt) {
    const std::shared_ptr<const ShardMap> map = newest_map();
    std::vector<std::pair<uint32_t, std::future<absl::StatusOr<v1::CheckpointResponse>>>> writing;
    for (uint32_t server = 0; server < map->servers(); ++server) {
      if (map->ShardsOf(server).empty() && (!wrote.contains(server) || map->Away(server))) continue;
      v1::CheckpointRequest request;
      request.set_name(name);
      request.set_removes(wrote.contains(server) ? name : removes);
      writing.emplace_back(server, std::async(std::launch::async, [&, server, request = std::move(request)] {
                             return WriteAt(map->AddressOf(server), message_max_bytes, credentials, request);
                           }));
    }
    absl::Status first;
    std::vector<v1::CheckpointResponse> parts;
    for (auto& [server, written] : writing) {
      absl::StatusOr<v1::CheckpointResponse> part = written.get();
      first.Update(Annotate(part.status(), absl::StrCat("checkpoint of ps ", server, " at ", map->AddressOf(server))));
      if (!part.ok()) continue;
      parts.push_back(*std::move(part));
      wrote.insert(server);
    }
    LODESTONE_RETURN_IF_ERROR(first);
    const absl::Status whole = CheckHoldsAllShards(name, parts);
    if (whole.ok() || attempt == kCheckpointAttemptsMax) return whole;
    std::this_thread::sleep_for(std::chrono::milliseconds(kCheckpointAgainMs));
  }
}

}  // namespace lodestone::worker
