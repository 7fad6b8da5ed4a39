#include "server/process_options.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/host_port.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/io/machine_limits.h"
#include "server/listen.h"
#include "server/rpc/process_identity.h"

namespace lodestone::server {

Store::Options StoreOptions(const v1::Config& config, const TimeSource* time) {
  Store::Options options;
  options.seed = config.cluster().seed();
  options.shards = config.cluster().shards();
  options.executors = config.server().executors() > 0 ? config.server().executors() : MachineCores();
  options.memory_max_bytes = config.server().memory_max_bytes();
  if (options.memory_max_bytes == 0) {
    // Nine tenths of what there is: a table beyond it is refused, not the process killed.
    options.memory_max_bytes = MachineMemoryBytes() / 10 * 9;
  }
  options.process_bytes = PrivateBytes;
  options.time = time;
  options.committed_reads = config.cluster().reads() == v1::ClusterConfig::DURABLE;
  return options;
}

std::function<uint64_t()> CallMemoryBytes(const v1::Config& config, std::function<uint64_t()> table_bytes) {
  const uint64_t all = StoreOptions(config, nullptr).memory_max_bytes;
  const uint64_t least = all / limits::kCallMemoryParts;
  const uint64_t most = std::max(least, limits::kCallMemoryMessages * config.server().message_max_bytes());
  return [all, least, most, table_bytes = std::move(table_bytes)] {
    const uint64_t left = all - std::min(all, table_bytes());
    // Large answers have half as much again (CallMemory), and broadcasts what is left (store.cc).
    return std::clamp(left / 2, least, most);
  };
}

absl::Status CheckProcessConfig(const v1::Config& config) {
  const v1::ServerConfig& server = config.server();
  LODESTONE_RETURN_IF_ERROR(CheckAddresses(server.listen(), server.advertise()));
  if (!server.http_listen().empty()) {
    LODESTONE_RETURN_IF_ERROR(Annotate(ParseHostPort(server.http_listen()).status(), "server.http_listen"));
  }
  if (server.index() >= config.cluster().servers()) {
    return absl::InvalidArgumentError(absl::StrCat("server.index is ", server.index(), ", and cluster.servers is ",
                                                   config.cluster().servers(), ": indices start at 0"));
  }
  if (server.index() > 0 && config.coordinator().address().empty() && config.coordinator().etcd().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "server.index is ", server.index(),
        ": coordinator.address must be the host:port of the ps with index 0 (or coordinator.etcd be set)"));
  }
  return absl::OkStatus();
}

std::function<SharedUse()> SharedUseOf(const v1::Config& config, Security* security, const Store* store) {
  // Nothing but the call vouches for its maker.
  const bool asks = security->access() != nullptr || security->serves_by_tls();
  if (!config.cluster().shared_memory() || asks) return nullptr;
  return [store] { return store->log().ReadsAfterAnswers() ? SharedUse::kCopied : SharedUse::kRead; };
}

}  // namespace lodestone::server
