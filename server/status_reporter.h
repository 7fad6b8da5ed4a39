// The status of a ps, collected from its parts: what it answers by gRPC and HTTP, and says in heartbeats.
//
// Thread-safe. Its sources must outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "common/http/http_server.h"
#include "proto/admin.pb.h"
#include "server/rpc/admin_service.h"
#include "server/rpc/process_identity.h"

namespace lodestone::server {

class Broadcaster;
class CoordinatorHost;
class EventLog;
class CoordinatorClient;
class Replication;
class Security;
class Storage;
class Store;

class StatusReporter {
 public:
  struct Sources {
    const Store* store = nullptr;
    const Storage* storage = nullptr;  // Null: nothing is kept on disk.
    const Broadcaster* broadcaster = nullptr;
    const Replication* replication = nullptr;  // Null: shards have no followers.
    const CoordinatorHost* coordinator = nullptr;
    const Security* security = nullptr;
    const EventLog* events = nullptr;
    std::function<ProcessIdentity()> identity;
    std::function<std::shared_ptr<CoordinatorClient>()> member;  // May return null.
    std::function<void(v1::StatusResponse*)> add_waits;          // Of the process as a whole.
    uint32_t message_max_bytes = UINT32_MAX;                     // server.message_max_bytes.
  };
  explicit StatusReporter(Sources sources) : from_(std::move(sources)) {}

  void FillStatus(v1::StatusResponse* status) const;
  // What a heartbeat says.
  v1::ServerProgress Progress() const;
  // Of the cluster where this ps serves the coordinator; otherwise of this ps.
  v1::EventsResponse Events(uint64_t after_id) const;
  v1::HistoryResponse History() const;
  // What the HTTP port answers. `readiness`: OK if the ps takes calls.
  HttpServer::Paths HttpPaths(std::function<absl::Status()> readiness) const;

 private:
  const Sources from_;
};

}  // namespace lodestone::server
