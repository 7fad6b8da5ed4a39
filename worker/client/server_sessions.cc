#include "worker/client/server_sessions.h"

#include <algorithm>
#include <utility>

#include "common/telemetry/log.h"
#include "worker/rpc/server_channel.h"

namespace lodestone::worker {

ServerSessions::ServerSessions(Incarnation incarnation, std::span<const std::unique_ptr<ServerChannel>> channels,
                               bool of_range)
    : channels_(channels), of_range_(of_range), servers_(channels.size()) {
  MutexLock lock(&mu_);
  request_.set_worker_incarnation(incarnation);
}

void ServerSessions::Add(const std::vector<v1::TableSpec>& specs, const std::set<uint32_t>& servers) {
  MutexLock lock(&mu_);
  const bool first = names_.empty();
  bool more = false;
  for (const v1::TableSpec& spec : specs) {
    if (!names_.insert(spec.name()).second) {  // A session that is opened again brings what the table is by now.
      const auto known = std::find_if(request_.mutable_tables()->begin(), request_.mutable_tables()->end(),
                                      [&](const v1::TableSpec& other) { return other.name() == spec.name(); });
      *known = spec;
      continue;
    }
    *request_.add_tables() = spec;
    more = true;
  }
  for (uint32_t server = 0; server < servers_.size(); ++server) {
    const bool knows = servers.contains(server);
    if (knows && first) servers_[server].open.store(true, std::memory_order_release);
    if (!knows && more) servers_[server].open.store(false, std::memory_order_release);
  }
}

void ServerSessions::FollowOrders(uint64_t orders) {
  MutexLock lock(&mu_);
  request_.set_orders(orders);
}

std::shared_ptr<ServerSessions> ServerSessions::ForRange(Incarnation range) {
  auto sessions = std::make_shared<ServerSessions>(range, channels_, true);
  MutexLock lock(&mu_);
  {
    MutexLock range_lock(&sessions->mu_);
    sessions->request_ = request_;
    sessions->request_.set_worker_incarnation(range);
    sessions->request_.set_keep_settings(true);
    sessions->names_ = names_;
  }
  std::erase_if(ranges_, [](const std::weak_ptr<ServerSessions>& other) { return other.expired(); });
  ranges_.push_back(sessions);
  return sessions;
}

void ServerSessions::Forget(uint32_t server) {
  std::vector<std::weak_ptr<ServerSessions>> ranges;
  {
    MutexLock lock(&mu_);
    servers_[server].forgotten = true;
    servers_[server].open.store(false, std::memory_order_release);
    ranges = ranges_;
  }
  for (const std::weak_ptr<ServerSessions>& range : ranges) {
    if (const std::shared_ptr<ServerSessions> alive = range.lock(); alive != nullptr) alive->Forget(server);
  }
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
  // A range's may not be needed any more when the answer comes.
  channels_[server]->Call(std::move(message), [this, self = weak_from_this().lock(), server, tables](
                                                  absl::StatusOr<Connection::Answer> answer, ServerChannel::Request*) {
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
  if (!of_range_ || !status.ok()) {
    LODESTONE_LOG(INFO, "client", "opened a session peer={} result={}", channels_[server]->peer(), status.ToString());
  }
  for (const Done& done : waiting) done(status);
}

}  // namespace lodestone::worker
