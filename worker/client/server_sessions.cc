#include "worker/client/server_sessions.h"

#include <utility>

#include "common/telemetry/log.h"
#include "worker/rpc/server_channel.h"

namespace lodestone::worker {

ServerSessions::ServerSessions(Incarnation incarnation, std::span<const std::unique_ptr<ServerChannel>> channels)
    : channels_(channels), servers_(channels.size()) {
  MutexLock lock(&mu_);
  request_.set_worker_incarnation(incarnation);
}

void ServerSessions::Add(const std::vector<v1::TableSpec>& specs, const std::set<uint32_t>& servers) {
  MutexLock lock(&mu_);
  const bool first = names_.empty();
  bool more = false;
  for (const v1::TableSpec& spec : specs) {
    if (!names_.insert(spec.name()).second) continue;
    *request_.add_tables() = spec;
    more = true;
  }
  for (uint32_t server = 0; server < servers_.size(); ++server) {
    const bool knows = servers.contains(server);
    if (knows && first) servers_[server].open.store(true, std::memory_order_release);
    if (!knows && more) servers_[server].open.store(false, std::memory_order_release);
  }
}

void ServerSessions::Forget(uint32_t server) {
  MutexLock lock(&mu_);
  servers_[server].forgotten = true;
  servers_[server].open.store(false, std::memory_order_release);
}

void ServerSessions::Open(uint32_t server, Done done) {
  if (IsOpen(server)) return done(absl::OkStatus());
  ServerChannel::Request message;
  {
    MutexLock lock(&mu_);
    std::vector<Done>& waiting = servers_[server].waiting;
    waiting.push_back(std::move(done));
    if (waiting.size() > 1) return;
    servers_[server].forgotten = false;
    *message.call.mutable_ensure_tables() = request_;
  }
  message.what = "opening of the session";
  const int tables = message.call.ensure_tables().tables_size();
  channels_[server]->Call(std::move(message),
                          [this, server, tables](absl::StatusOr<Connection::Answer> answer, ServerChannel::Request*) {
                            OnAnswer(server, tables, answer.status());
                          });
}

void ServerSessions::OnAnswer(uint32_t server, int tables, const absl::Status& status) {
  std::vector<Done> waiting;
  {
    MutexLock lock(&mu_);
    waiting.swap(servers_[server].waiting);
    const bool knows = status.ok() && tables == request_.tables_size() && !servers_[server].forgotten;
    if (knows) servers_[server].open.store(true, std::memory_order_release);
  }
  LODESTONE_LOG(INFO, "client", "opened a session peer={} result={}", channels_[server]->peer(), status.ToString());
  for (const Done& done : waiting) done(status);
}

}  // namespace lodestone::worker
