#include "tests/simulation/client.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "worker/client/push_split.h"
#include "worker/client/server_sessions.h"

namespace lodestone::simulation {
namespace {

constexpr int64_t kForeverMs = 3'600'000;
constexpr size_t kReadsMax = 6;  // Rows in a pull.

grpc::Slice SliceOfKeys(const std::vector<Key>& keys) { return grpc::Slice(keys.data(), keys.size() * sizeof(Key)); }

}  // namespace

v1::TableSpec LedgerTable() {
  v1::TableSpec spec;
  spec.set_name("ledger");
  spec.mutable_embedding()->set_dim(1);
  spec.mutable_optimizer()->mutable_sgd();
  spec.mutable_optimizer()->set_learning_rate(-1);
  return spec;
}

Client::Client(const Options& options, const ProcessRef& process, Network* network, const Directory* directory,
               Ledger* ledger)
    : options_(options),
      process_(process),
      network_(network),
      kernel_(network->kernel()),
      directory_(directory),
      ledger_(ledger),
      time_(kernel_) {
  timer_ = std::make_unique<Timer>();
  rerouter_ = std::make_unique<worker::Rerouter>(worker::Rerouter::Options{
      .map = [this] { return map_; },
      .ask_route = [this] { ask_route_ = true; },
      .timer = timer_.get(),
      .retry_timeout_ms = kForeverMs,
      .seed = options.index,
  });
  run_ = Thread([this] { Run(); });
  heartbeats_ = Thread([this] { RunHeartbeats(); });
  reads_ = Thread([this] { RunReads(); });
}

Client::~Client() {
  if (session_ != nullptr) session_->window.Fail(absl::CancelledError("the client ends"));
  run_.join();
  heartbeats_.join();
  reads_.join();
  rerouter_->Cancel();
  while (fibers_ > 0) kernel_->Wait(&fibers_, Simulation::kNever);
  rerouter_.reset();
  timer_.reset();
  kernel_->AwaitEventsOf(process_.get());
}

void Client::Start(std::function<void()> body) {
  ++fibers_;
  kernel_->After(
      0, process_,
      [this, body = std::move(body)] {
        body();
        if (--fibers_ == 0) kernel_->Notify(&fibers_);
      },
      /*also_dead=*/true);
}

bool Client::Join() {
  v1::JoinRequest request;
  request.set_role(v1::ROLE_WORKER);
  request.set_cluster(options_.cluster);
  request.set_shards(options_.shards);
  request.set_index_plus_one(options_.index + 1);
  request.set_token(1 + kernel_->Draw(1ull << 60));
  const auto answer = directory_->coordinator(Method::kJoin, request.SerializeAsString(), 2000);
  if (!answer.ok()) return false;
  v1::JoinResponse response;
  LODESTONE_CHECK(response.ParseFromString(*answer));
  session_ = std::make_shared<Session>(options_.in_flight_max);
  session_->incarnation = response.incarnation();
  return true;
}

bool Client::FetchRoute() {
  v1::RouteRequest request;
  request.set_role(v1::ROLE_WORKER);
  const auto answer = directory_->coordinator(Method::kRoute, request.SerializeAsString(), 1000);
  if (!answer.ok()) return false;
  v1::RouteResponse route;
  LODESTONE_CHECK(route.ParseFromString(*answer));
  auto map = ShardMap::FromProto(route);
  LODESTONE_CHECK(map.ok());
  if (map_ != nullptr && map->epoch() <= map_->epoch()) return true;
  for (uint32_t server = 0; server < options_.servers; ++server) {
    // It may have lost the session with its life.
    if (map_ != nullptr && session_ != nullptr && map_->IncarnationOf(server) != map->IncarnationOf(server)) {
      session_->open.erase(server);
    }
  }
  map_ = std::make_shared<const ShardMap>(*std::move(map));
  kernel_->Notify(&map_);
  rerouter_->Wake();
  return true;
}

void Client::RunHeartbeats() {
  int64_t next_ms = 0;
  while (process_->alive) {
    kernel_->Sleep(20'000);
    const SessionRef session = session_;
    if (session == nullptr || session->lost) continue;
    if (kernel_->NowMs() >= next_ms) {
      v1::HeartbeatRequest request;
      request.set_incarnation(session->incarnation);
      const auto answer = directory_->coordinator(Method::kHeartbeat, request.SerializeAsString(), 1000);
      next_ms = kernel_->NowMs() + 300;
      if (absl::IsFailedPrecondition(answer.status())) {
        kernel_->Trace(absl::StrCat(process_->name, " has lost its lease"));
        session->lost = true;
        session->window.Fail(answer.status());
        kernel_->Notify(&map_);
        continue;
      }
      v1::HeartbeatResponse response;
      if (answer.ok() && response.ParseFromString(*answer) && map_ != nullptr) {
        ask_route_ |= response.route_epoch() > map_->epoch();
      }
    }
    if (std::exchange(ask_route_, false)) {
      FetchRoute();
      kernel_->Sleep(80'000);
    }
  }
}

void Client::Run() {
  while (process_->alive && !stopping_) {
    if (!Join()) {
      kernel_->Sleep(50'000);
      continue;
    }
    while (process_->alive && !FetchRoute()) kernel_->Sleep(30'000);
    const SessionRef session = session_;
    while (process_->alive && !stopping_ && !session->lost) {
      Push(session);
      kernel_->Sleep(kernel_->Between(0, options_.think_us_max));
    }
    session->window.Flush().IgnoreError();
  }
  done_ = true;
}

void Client::Push(const SessionRef& session) {
  if (!session->window.Enter(kForeverMs).ok()) return;
  auto operation = std::make_shared<Operation>();
  operation->push = ledger_->Add(options_.index, 1 + kernel_->Draw(3));
  operation->messages = 1;
  const std::shared_ptr<const ShardMap> map = map_;
  std::map<uint32_t, std::map<ShardId, std::vector<Key>>> by_server;
  for (const Key key : ledger_->pushes()[operation->push].keys) {
    const ShardId shard = ShardOfKey(key, options_.shards);
    by_server[map->OwnerOf(shard)][shard].push_back(key);
  }
  for (const auto& [server, shards] : by_server) {
    const absl::StatusOr<Sequence> sequence = session->window.NextSequence(/*bytes=*/1, kForeverMs);
    if (!sequence.ok()) {
      operation->failed = true;
      break;
    }
    Request request;
    request.epoch = map->epoch();
    request.started_ms = kernel_->NowMs();
    v1::PushRequest& push = *request.call.mutable_push();
    push.set_worker_incarnation(session->incarnation);
    push.set_sequence(*sequence);
    push.set_clock(operation->push + 1);
    std::vector<Key> all;
    for (const auto& [shard, keys] : shards) {
      v1::Part& part = *push.add_parts();
      part.set_shard(shard);
      part.set_table(TableIdOf(LedgerTable().name()));
      part.set_row_count(static_cast<uint32_t>(keys.size()));
      const std::vector<float> values(keys.size(), 1.0f);
      request.payload.parts.push_back({keys.size() * sizeof(Key), values.size() * sizeof(float)});
      request.payload.values.emplace_back(values.data(), values.size() * sizeof(float));
      all.insert(all.end(), keys.begin(), keys.end());
    }
    request.payload.keys = SliceOfKeys(all);
    ++operation->messages;
    Send(std::move(request), {.session = session,
                              .operation = operation,
                              .sequence = *sequence,
                              .pieces = std::make_shared<int>(1),
                              .server = server});
  }
  End({.session = session, .operation = operation}, true);
}

void Client::Send(Request request, InFlight in_flight) {
  Start([this, request = std::move(request), in_flight = std::move(in_flight)] { SendUntilDone(request, in_flight); });
}

absl::Status Client::CheckOwners(const v1::PushRequest& push, uint32_t server) const {
  for (const v1::Part& part : push.parts()) {
    if (map_->OwnerOf(part.shard()) != server) return absl::AbortedError("the newest map says another owner");
  }
  return absl::OkStatus();
}

void Client::SendUntilDone(Request request, InFlight in_flight) {
  const SessionRef session = in_flight.session;
  Retry retry({.call_timeout_ms = options_.call_timeout_ms, .retry_timeout_ms = kForeverMs}, &time_,
              (uint64_t{options_.index} << 32) + ++seeds_);
  while (process_->alive && !session->lost) {
    const uint32_t server = in_flight.server;
    const bool known = session->open.contains(server);
    const auto wanted = [&] {
      if (session->lost) return absl::CancelledError("the session is lost");
      return map_->epoch() > request.epoch ? CheckOwners(request.call.push(), server) : absl::OkStatus();
    };
    const auto answer = Attempt(server, request.call, KeysInParts(request.payload), wanted);
    const absl::Status& status = answer.status();
    if (status.ok()) {
      for (const auto& result : answer->header.push().shards()) ledger_->NoteVersion(result.shard(), result.version());
      return End(in_flight, true);
    }
    ++resent_;
    kernel_->Trace(absl::StrCat(process_->name, ": push ", in_flight.operation->push, " (", in_flight.sequence,
                                ") to ps ", server, ": ", absl::StatusCodeToString(status.code())));
    if (absl::IsAborted(status)) {
      const auto map = TurnBack(status, &request);
      if (map.ok()) SendAgain(**map, &request, &in_flight);
    } else if (worker::IsUnknownThere(status) && !known) {
      const absl::Status opened = OpenSession(session, server);
      if (absl::IsFailedPrecondition(opened)) {
        Lose(session, opened);
      } else {
        if (!opened.ok()) kernel_->Sleep(20'000);
        SendAgain(*map_, &request, &in_flight);
      }
    } else if (worker::IsUnknownThere(status)) {
      Lose(session, status);
    } else if (const std::optional<int64_t> pause_ms = retry.Next(status.code()); pause_ms.has_value()) {
      ask_route_ = true;
      kernel_->Sleep(1000 * *pause_ms);
    } else if (!session->lost) {
      if (process_->alive) ledger_->Fail(absl::StrCat("a push was refused: ", status.ToString()));
      break;
    }
  }
  End(in_flight, false);
}

// Only who has lost its lease is forgotten, as the coordinator tells.
void Client::Lose(const SessionRef& session, const absl::Status& why) {
  kernel_->Trace(absl::StrCat(process_->name, " is not known any more"));
  session->lost = true;
  session->window.Fail(why);
}

void Client::SendAgain(const ShardMap& map, Request* request, InFlight* in_flight) {
  std::vector<worker::PushSplit> splits = worker::SplitPush(map, std::move(*request));
  *in_flight->pieces += static_cast<int>(splits.size()) - 1;
  in_flight->operation->messages += splits.size() - 1;
  for (size_t i = 1; i < splits.size(); ++i) {
    InFlight other = *in_flight;
    other.server = splits[i].server;
    Send(std::move(splits[i].request), std::move(other));
  }
  in_flight->server = splits[0].server;
  *request = std::move(splits[0].request);
}

absl::StatusOr<std::shared_ptr<const ShardMap>> Client::TurnBack(const absl::Status& status, Request* request) {
  struct State {
    std::optional<absl::StatusOr<std::shared_ptr<const ShardMap>>> map;
  };
  const auto state = std::make_shared<State>();
  Kernel* const kernel = kernel_;
  rerouter_->TurnBack(status, request, [kernel, state](absl::StatusOr<std::shared_ptr<const ShardMap>> map) {
    state->map = std::move(map);
    kernel->Notify(state.get());
  });
  while (!state->map.has_value()) kernel_->Wait(state.get(), Simulation::kNever);
  return *state->map;
}

absl::Status Client::OpenSession(const SessionRef& session, uint32_t server) {
  v1::Call call;
  call.mutable_ensure_tables()->set_worker_incarnation(session->incarnation);
  *call.mutable_ensure_tables()->add_tables() = LedgerTable();
  const absl::Status status = Attempt(server, call, {}).status();
  if (status.ok()) session->open.insert(server);
  return status;
}

void Client::End(const InFlight& in_flight, bool acknowledged) {
  if (in_flight.sequence > 0 && --*in_flight.pieces == 0) in_flight.session->window.Acknowledge(in_flight.sequence);
  Operation& operation = *in_flight.operation;
  operation.failed |= !acknowledged;
  if (--operation.messages > 0) return;
  if (operation.failed) {
    ledger_->GiveUp(operation.push);
  } else {
    ledger_->Acknowledge(operation.push);
  }
  kernel_->Trace(
      absl::StrCat(process_->name, ": push ", operation.push, operation.failed ? " is given up" : " is acknowledged"));
  in_flight.session->window.Leave(absl::OkStatus());
}

std::shared_ptr<Client::Connection> Client::ConnectionTo(uint32_t server) {
  std::shared_ptr<Connection>& connection = connections_[server];
  if (connection != nullptr && !connection->line->closed(0)) return connection;
  const Listener listener = directory_->find_exchange(AddressOf(server));
  if (listener.process == nullptr) return nullptr;
  connection = std::make_shared<Connection>();
  connection->line = network_->Connect(process_, listener.process);
  Kernel* const kernel = kernel_;
  connection->line->Listen(
      0,
      [kernel, weak = std::weak_ptr(connection)](const std::string& message) {
        const auto to = weak.lock();
        if (to == nullptr) return;
        const grpc::Slice slice(message);
        v1::ExchangeResponse response;
        Answer answer;
        LODESTONE_CHECK(ParseMessage(grpc::ByteBuffer(&slice, 1), &response, &answer.payload).ok());
        answer.header = response.answers(0);
        const auto waiting = to->waiting.find(answer.header.id());
        if (waiting == to->waiting.end()) return;
        const auto code = static_cast<absl::StatusCode>(answer.header.code());
        waiting->second = code == absl::StatusCode::kOk
                              ? absl::StatusOr<Answer>(std::move(answer))
                              : absl::StatusOr<Answer>(absl::Status(code, answer.header.error()));
        kernel->Notify(to.get());
      },
      [kernel, weak = std::weak_ptr(connection)](const absl::Status& status) {
        if (const auto to = weak.lock(); to != nullptr) Break(kernel, to.get(), status);
      });
  listener.take(connection->line);
  return connection;
}

void Client::Break(Kernel* kernel, Connection* connection, const absl::Status& status) {
  connection->line->Close(0, absl::CancelledError("the client has closed it"));
  for (auto& [id, answer] : connection->waiting) {
    if (!answer.has_value()) answer = absl::StatusOr<Answer>(status);
  }
  kernel->Notify(connection);
}

absl::StatusOr<Client::Answer> Client::Attempt(uint32_t server, v1::Call call, std::span<const grpc::Slice> payload,
                                               const std::function<absl::Status()>& wanted) {
  const std::shared_ptr<Connection> connection = ConnectionTo(server);
  if (connection == nullptr) {
    kernel_->Sleep(network_->DelayUs());
    return absl::UnavailableError("nobody listens there");
  }
  const uint64_t id = ++connection->last_id;
  call.set_id(id);
  uint64_t bytes = 0;
  for (const grpc::Slice& slice : payload) bytes += slice.size();
  call.set_payload_bytes(bytes);
  v1::ExchangeRequest request;
  *request.add_calls() = std::move(call);
  std::vector<grpc::Slice> slices;
  LODESTONE_CHECK(BuildMessage(request, payload).Dump(&slices).ok());
  std::string message;
  for (const grpc::Slice& slice : slices) message.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  auto& answer = connection->waiting[id];
  connection->line->Send(0, std::move(message));
  const int64_t until_ms = kernel_->NowMs() + options_.call_timeout_ms;
  absl::Status unwanted;
  while (!answer.has_value() && process_->alive && kernel_->NowMs() < until_ms && unwanted.ok()) {
    kernel_->Wait(connection.get(), std::min(until_ms, kernel_->NowMs() + 50));
    if (wanted) unwanted = wanted();
  }
  std::optional<absl::StatusOr<Answer>> result = std::move(answer);
  connection->waiting.erase(id);
  if (result.has_value()) return *std::move(result);
  if (!process_->alive) return absl::CancelledError("the client is dead");
  if (!unwanted.ok()) return unwanted;
  // A connection that does not answer is not worth waiting for.
  Break(kernel_, connection.get(), absl::UnavailableError("a call of the connection was not answered in time"));
  return absl::DeadlineExceededError("no answer came in time");
}

void Client::RunReads() {
  while (process_->alive && !done_) {
    kernel_->Sleep(kernel_->Between(5'000, 60'000));
    if (!ledger_->acknowledged().empty() && map_ != nullptr) ReadSome();
  }
}

void Client::ReadSome() {
  const std::vector<size_t>& acknowledged = ledger_->acknowledged();
  std::map<ShardId, std::vector<Key>> by_shard;
  const size_t recent = std::min<size_t>(acknowledged.size(), kernel_->Chance(0.7) ? 20 : acknowledged.size());
  for (size_t i = 0; i < kReadsMax; ++i) {
    const size_t push = acknowledged[acknowledged.size() - 1 - kernel_->Draw(recent)];
    const Key key = ledger_->pushes()[push].keys[0];
    std::vector<Key>& keys = by_shard[ShardOfKey(key, options_.shards)];
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
  }
  const std::map<ShardId, Version> versions = ledger_->versions();
  const std::shared_ptr<const ShardMap> map = map_;
  for (const auto& [shard, keys] : by_shard) {
    v1::Call call;
    call.mutable_pull()->set_worker_incarnation(0);
    v1::Part& part = *call.mutable_pull()->add_parts();
    part.set_shard(shard);
    part.set_table(TableIdOf(LedgerTable().name()));
    part.set_row_count(static_cast<uint32_t>(keys.size()));
    const grpc::Slice payload[] = {SliceOfKeys(keys)};
    const uint32_t owner = map->OwnerOf(shard);
    const auto answer = Attempt(owner, call, payload);
    if (!answer.ok()) {
      ask_route_ |= absl::IsAborted(answer.status()) || absl::IsUnavailable(answer.status());
      continue;
    }
    std::vector<float> values(keys.size());
    LODESTONE_CHECK(answer->payload.size() == values.size() * sizeof(float));
    answer->payload.bytes().CopyTo(reinterpret_cast<uint8_t*>(values.data()));
    const std::string where = absl::StrCat("pulled by ", process_->name, " from ps ", owner, ", shard ", shard);
    for (size_t i = 0; i < keys.size(); ++i) ledger_->Judge(keys[i], values[i], /*known=*/true, where);
    const auto known = versions.find(shard);
    const Version version = answer->header.pull().shard_versions(0);
    if (known != versions.end() && version < known->second) {
      ledger_->Fail(
          absl::StrCat("shard ", shard, " went back to version ", version, " from ", known->second, ", ", where));
    }
  }
}

}  // namespace lodestone::simulation
