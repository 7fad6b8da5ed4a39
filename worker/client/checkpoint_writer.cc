#include "worker/client/checkpoint_writer.h"

#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/base/time_source.h"
#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "proto/admin.grpc.pb.h"

namespace lodestone::worker {
namespace {

// A ps gets this long to write its part, and to end the one that it writes already.
constexpr int64_t kWriteMsMax = 10 * 60'000;
constexpr int64_t kBusyMsMax = 60'000;

absl::Status WriteAt(const std::string& address, uint32_t message_max_bytes, const CredentialsRef& credentials,
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
    if (!absl::IsUnavailable(status) || time.NowMs() - start_ms > kBusyMsMax) return status;
    std::this_thread::sleep_for(std::chrono::milliseconds(limits::kRetryBackoffMinMs));
  }
}

}  // namespace

absl::Status WriteCheckpoints(const ShardMap& map, uint32_t message_max_bytes, const CredentialsRef& credentials,
                              const std::string& name, const std::string& removes) {
  v1::CheckpointRequest request;
  request.set_name(name);
  request.set_removes(removes);
  std::vector<std::pair<uint32_t, std::future<absl::Status>>> writing;
  for (uint32_t server = 0; server < map.servers(); ++server) {
    if (map.ShardsOf(server).empty()) continue;
    writing.emplace_back(server, std::async(std::launch::async, [&, server] {
                           return WriteAt(map.AddressOf(server), message_max_bytes, credentials, request);
                         }));
  }
  absl::Status first;
  for (auto& [server, written] : writing) {
    first.Update(Annotate(written.get(), absl::StrCat("checkpoint of ps ", server, " at ", map.AddressOf(server))));
  }
  return first;
}

}  // namespace lodestone::worker
