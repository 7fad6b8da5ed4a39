#include "tests/simulation/cluster.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "server/shard/content_checksum.h"
#include "server/shard/shard.h"

namespace lodestone::simulation {
namespace {

constexpr char kClusterName[] = "simulated";
constexpr uint32_t kServersMax = 5;

// What a copy of a shard is, in short.
std::string TextOf(const server::Shard::State& state) {
  server::Shard::State rows = state;
  rows.windows.clear();
  std::string text = absl::StrCat("version ", state.version, ", rows ", absl::Hex(server::ContentChecksum(rows)));
  for (const auto& [worker, window] : state.windows) {
    absl::StrAppend(&text, ", worker ", worker, " up to ", window.newest(), " but");
    const std::string bits = window.AppliedBits();  // From the newest back.
    for (size_t i = 0; i < window.newest() && i < 8 * bits.size(); ++i) {
      if ((bits[i / 8] >> i % 8 & 1) == 0) absl::StrAppend(&text, " ", window.newest() - i);
    }
  }
  return text;
}

}  // namespace

std::string Shape::Describe() const {
  return absl::StrCat("servers=", servers, late ? " the last one late" : "", " replicas=", replicas, " shards=", shards,
                      " clients=", clients, elected ? " coordinator=elected" : " coordinator=embedded",
                      syncs ? " durability=machine" : "", " lease_ms=", lease_ms, " segment_bytes=", segment_bytes,
                      " checkpoint_ms=", checkpoint_ms, one_checkpoint_dir ? " one checkpoint.dir" : "");
}

Shape DrawShape(Kernel* kernel) {
  Shape shape;
  const bool replicated = kernel->Chance(0.65);
  shape.servers = replicated ? 2 + kernel->Draw(2) : 1 + kernel->Draw(2);
  shape.replicas = replicated ? 2 : 1;
  if (replicated && kernel->Chance(0.35)) {
    shape.replicas = 3;
    shape.servers = 3 + kernel->Draw(2);
  }
  shape.shards = 2 + kernel->Draw(4);
  shape.clients = 1 + kernel->Draw(3);
  shape.elected = replicated && kernel->Chance(0.4);
  shape.syncs = kernel->Chance(0.5);
  shape.lease_ms = kernel->Between(6, 16) * 100;
  shape.segment_bytes = 1024ull << kernel->Draw(10);
  shape.checkpoint_ms = kernel->Chance(0.3) ? 0 : kernel->Between(500, 6000);
  shape.one_checkpoint_dir = kernel->Chance(0.5);
  shape.late = kernel->Chance(0.3);
  shape.servers += shape.late ? 1 : 0;
  return shape;
}

Cluster::Cluster(const Shape& shape, Kernel* kernel, Network* network, Disk* disk, Ledger* ledger)
    : shape_(shape), kernel_(kernel), network_(network), disk_(disk), ledger_(ledger), machines_(kServersMax) {
  machines_[shape.servers - 1].came = !shape.late;
  directory_.coordinator = [this](Method method, std::string request, int64_t timeout_ms) {
    return CallCoordinator(method, std::move(request), timeout_ms);
  };
  directory_.find = [this](const std::string& address) {
    Machine& machine = machines_[IndexOf(address)];
    if (machine.ps == nullptr) return Listener();
    return Listener{machine.process, [ps = machine.ps.get()](const LineRef& line) { ps->TakeFollower(line); }};
  };
  directory_.find_exchange = [this](const std::string& address) {
    Machine& machine = machines_[IndexOf(address)];
    if (machine.ps == nullptr) return Listener();
    return Listener{machine.process, [ps = machine.ps.get()](const LineRef& line) { ps->TakeExchange(line); }};
  };
}

Cluster::~Cluster() = default;

v1::Config Cluster::ConfigOf(uint32_t server) const {
  v1::Config config;
  config.mutable_cluster()->set_name(kClusterName);
  config.mutable_cluster()->set_servers(shape_.servers);
  config.mutable_cluster()->set_servers_at_start(shape_.late ? shape_.servers - 1 : 0);
  config.mutable_cluster()->set_replicas(shape_.replicas);
  config.mutable_cluster()->set_shards(shape_.shards);
  config.mutable_cluster()->set_seed(1);
  if (shape_.syncs) config.mutable_cluster()->set_durability(v1::ClusterConfig::MACHINE);
  config.mutable_server()->set_index(server);
  config.mutable_server()->set_data_dir(DataDirOf(server));
  config.mutable_server()->set_log_segment_bytes(shape_.segment_bytes);
  config.mutable_checkpoint()->set_every_ms(shape_.checkpoint_ms);
  config.mutable_checkpoint()->set_keep(2);
  if (shape_.one_checkpoint_dir) config.mutable_checkpoint()->set_dir(absl::StrCat(disk_->folder(), "/checkpoints"));
  const Machine& machine = machines_[server];
  const bool leaves_it = kernel_->Chance(0.5) && (machine.may_load || shape_.one_checkpoint_dir);
  if (!machine.went_back || leaves_it) config.mutable_checkpoint()->set_load(load_);
  config.mutable_coordinator()->set_lease_ms(shape_.lease_ms);
  return config;
}

Coordinator::Options Cluster::CoordinatorOptions(int64_t term) const {
  Coordinator::Options options;
  options.cluster.cluster = kClusterName;
  options.cluster.servers = shape_.servers;
  options.cluster.servers_at_start = shape_.late ? shape_.servers - 1 : 0;
  options.cluster.workers = shape_.clients;
  options.cluster.shards = shape_.shards;
  options.cluster.replicas = shape_.replicas;
  options.cluster.lease_ms = shape_.lease_ms;
  options.cluster.ends_with_server_0 = !shape_.elected;
  options.cluster.watches_processes = true;
  options.elected = shape_.elected;
  options.term = term;
  return options;
}

void Cluster::Start() {
  for (uint32_t server = 0; server < shape_.servers; ++server) StartPs(server);
  StartClients();
}

void Cluster::StartClients() {
  for (uint32_t client = 0; client < shape_.clients; ++client) {
    const auto process = std::make_shared<Process>();
    process->name = absl::StrCat("client ", client);
    process->machine = MachineOfClient(client);
    Client::Options options;
    options.index = client;
    options.cluster = kClusterName;
    options.shards = shape_.shards;
    options.servers = shape_.servers;
    options.in_flight_max = 1 + kernel_->Draw(8);
    options.think_us_max = kernel_->Between(2'000, 40'000);
    options.call_timeout_ms = kernel_->Between(100, 1500);
    clients_.push_back(nullptr);
    kernel_->After(0, process, [this, client, options, process] {
      clients_[client] = std::make_unique<Client>(options, process, network_, &directory_, ledger_);
    });
  }
}

void Cluster::StartPs(uint32_t server) {
  Machine& machine = machines_[server];
  // All may be ended, or the cluster may have no place for it any more, while its former process ends.
  const auto is_wanted = [&] { return machine.came && !over_ && !all_end_ && server < shape_.servers; };
  if (machine.ps != nullptr || machine.starting || !is_wanted()) return;
  machine.starting = true;
  while (machine.ending) kernel_->Wait(&machine, kernel_->NowMs() + 1);
  if (!is_wanted()) {
    machine.starting = false;
    return;
  }
  if (std::exchange(machine.disk_is_lost, false)) std::filesystem::remove_all(DataDirOf(server));
  const auto process = std::make_shared<Process>();
  process->name = absl::StrCat("ps ", server);
  process->machine = server;
  process->boot = absl::StrCat("boot ", machine.boots);
  machine.process = process;
  kernel_->Trace(absl::StrCat("starts ", process->name));
  kernel_->After(0, process, [this, server, process, &machine] {
    if (!shape_.elected && server == 0) {
      machine.coordinator = std::make_unique<Coordinator>(CoordinatorOptions(0), network_, &ballot_);
    }
    machine.ps = std::make_unique<Ps>(ConfigOf(server), process, network_, disk_, &directory_);
    if (shape_.elected) machine.election = Thread([this, server, process] { RunElection(server, process); });
  });
  kernel_->Sleep(1);
  while (machine.ps == nullptr && process->alive) kernel_->Wait(&machine, kernel_->NowMs() + 1);
  machine.starting = false;
}

void Cluster::Kill(uint32_t server, bool machine_too) {
  Machine& machine = machines_[server];
  if (machine.ps == nullptr || !machine.process->alive) return;
  const ProcessRef process = machine.process;
  kernel_->Trace(absl::StrCat("kills ", process->name, machine_too ? " and its machine" : ""));
  machine.went_back |= machine.ps->has_begun();
  process->alive = false;
  network_->EndLinesOf(process, machine_too ? kernel_->Between(500'000, 3'000'000) : 0);
  if (process->stopped) kernel_->Continue(process);
  if (machine_too) {
    disk_->LoseUnsynced(DataDirOf(server));
    ++machine.boots;
  } else if (kernel_->Chance(0.8)) {
    // The coordinator finds the port closed (common/rpc/process_watch.h).
    for (Machine& other : machines_) {
      if (other.coordinator == nullptr || &other == &machine) continue;
      kernel_->After(kernel_->Between(60'000, 400'000), other.process,
                     [&other, incarnation = machine.ps->incarnation()] {
                       if (other.coordinator != nullptr) other.coordinator->NoteGone(incarnation);
                     });
    }
  }
  machine.ending = true;
  const auto ps = std::make_shared<std::unique_ptr<Ps>>(std::move(machine.ps));
  kernel_->WakeAll(process.get());
  kernel_->After(0, kernel_->world(), [this, &machine, ps, process] {
    if (machine.election.joinable()) machine.election.join();
    machine.coordinator.reset();
    ps->reset();
    kernel_->AwaitEventsOf(process.get());
    machine.ending = false;
    kernel_->Notify(&machine);
  });
}

bool Cluster::Leave(uint32_t server, bool machine_too) {
  Machine& machine = machines_[server];
  const ProcessRef process = machine.process;
  if (machine.ps == nullptr || !process->alive || process->stopped || !machine.ps->serves()) return false;
  kernel_->Trace(absl::StrCat("ends ", process->name));
  const auto left = std::make_shared<bool>(false);
  kernel_->After(0, process, [kernel = kernel_, ps = machine.ps.get(), left] {
    ps->Leave();
    *left = true;
    kernel->Notify(left.get());
  });
  while (process->alive && !*left) kernel_->Wait(left.get(), kernel_->NowMs() + 20);
  if (!process->alive) return false;
  Kill(server, machine_too);
  return true;
}

void Cluster::LoseDisk(uint32_t server) {
  kernel_->Trace(absl::StrCat("the disk of ps ", server, " is lost"));
  machines_[server].disk_is_lost = true;
  machines_[server].may_load = false;
}

// As Election and ElectedCoordinator, by their contract: the lease in etcd says who leads.
void Cluster::RunElection(uint32_t server, const ProcessRef& process) {
  Machine& machine = machines_[server];
  const int64_t lease_us = 1000 * int64_t{shape_.lease_ms};
  while (process->alive) {
    kernel_->Sleep(kernel_->Between(50'000, 150'000));
    if (!process->alive) break;
    const bool reaches = kernel_->NowUs() >= no_ballot_until_us_ || ballot_.leader != server;
    if (machine.coordinator != nullptr && !machine.coordinator->Leads()) {
      kernel_->Trace(absl::StrCat(process->name, " is not elected any more"));
      machine.coordinator->Stop();
      machine.coordinator.reset();
    } else if (machine.coordinator != nullptr && reaches) {
      ballot_.leads_until_us = kernel_->NowUs() + lease_us;
    } else if (machine.coordinator == nullptr && reaches && kernel_->NowUs() >= ballot_.leads_until_us) {
      ++ballot_.term;
      ballot_.leader = server;
      ballot_.leads_until_us = kernel_->NowUs() + lease_us;
      kernel_->Trace(absl::StrCat(process->name, " is elected in term ", ballot_.term));
      machine.coordinator = std::make_unique<Coordinator>(CoordinatorOptions(ballot_.term), network_, &ballot_);
    }
  }
}

void Cluster::Depose() {
  if (!shape_.elected) return;
  no_ballot_until_us_ = kernel_->NowUs() + 1000 * (shape_.lease_ms + kernel_->Between(0, 1000));
  kernel_->Trace(absl::StrCat("ps ", ballot_.leader, ", which is elected, does not reach etcd"));
}

absl::Status Cluster::WriteCheckpoint(const std::string& name) {
  kernel_->Trace(absl::StrCat("writes the checkpoint ", name));
  std::vector<std::optional<absl::Status>> written(shape_.servers);
  for (uint32_t server = 0; server < shape_.servers; ++server) {
    Machine& machine = machines_[server];
    if (!machine.came) {
      written[server] = absl::OkStatus();
      continue;
    }
    kernel_->After(0, machine.process, [this, &machine, &name, done = &written[server], all = &written] {
      *done = machine.ps->WriteCheckpoint(name);
      kernel_->Notify(all);
    });
  }
  for (const std::optional<absl::Status>& one : written) {
    while (!one.has_value()) kernel_->Wait(&written, Simulation::kNever);
  }
  for (const std::optional<absl::Status>& one : written) LODESTONE_RETURN_IF_ERROR(*one);
  return absl::OkStatus();
}

void Cluster::GoBack(const std::string& checkpoint) {
  kernel_->Trace(absl::StrCat("goes back to the checkpoint ", checkpoint));
  LODESTONE_CHECK(clients_.empty());
  load_ = checkpoint;
  EndServers(/*with_machine=*/0.3);
  for (Machine& machine : machines_) {
    machine.went_back = !machine.came;
    machine.may_load = machine.came;
  }
  if (!shape_.one_checkpoint_dir) GatherCheckpoint(checkpoint);
  for (uint32_t server = 0; server < shape_.servers; ++server) {
    const int64_t us = 1000 * (kernel_->Chance(0.7) ? kernel_->Between(0, 200) : kernel_->Between(0, 5000));
    kernel_->After(us, kernel_->world(), [this, server] { StartPs(server); });
  }
  StartClients();
}

// As an operator does: shards may have other owners by now than when it was written.
void Cluster::GatherCheckpoint(const std::string& checkpoint) const {
  using std::filesystem::copy_options;
  const auto folder_of = [&](uint32_t server) { return absl::StrCat(DataDirOf(server), "/checkpoints/", checkpoint); };
  for (uint32_t from = 0; from < shape_.servers; ++from) {
    for (uint32_t to = 0; to < shape_.servers; ++to) {
      if (to == from || IsOut(to) || !std::filesystem::exists(folder_of(from))) continue;
      std::filesystem::create_directories(folder_of(to));
      std::filesystem::copy(folder_of(from), folder_of(to), copy_options::recursive | copy_options::skip_existing);
    }
  }
}

void Cluster::ChangeServers(uint32_t servers) {
  kernel_->Trace(absl::StrCat("ends all, and starts ", servers));
  uint32_t ended = 0;
  all_end_ = true;
  for (uint32_t server = 0; server < shape_.servers; ++server) {
    kernel_->After(0, kernel_->world(), [this, server, &ended] {
      if (!Leave(server, kernel_->Chance(0.3)))
        ledger_->Fail(absl::StrCat("ps ", server, " does not end as it is told"));
      ++ended;
      kernel_->Notify(&ended);
    });
  }
  while (ended < shape_.servers) kernel_->Wait(&ended, kernel_->NowMs() + 20);
  for (Machine& machine : machines_) {
    while (machine.ending) kernel_->Wait(&machine, kernel_->NowMs() + 1);
  }
  shape_.servers = servers;
  all_end_ = false;
  for (uint32_t server = 0; server < shape_.servers; ++server) StartPs(server);
  StartClients();
}

void Cluster::Come() {
  machines_[shape_.servers - 1].came = true;
  StartPs(shape_.servers - 1);
}

void Cluster::PlanMoves(const v1::MoveRequest& request) {
  WithCoordinator([request](Coordinator* coordinator) { coordinator->Plan(request); });
}

void Cluster::Drain(const v1::DrainRequest& request) {
  WithCoordinator([request](Coordinator* coordinator) { coordinator->Drain(request); });
}

void Cluster::UndoDrains() {
  if (coordinator() == nullptr) return;
  uint32_t takes = 0;
  std::vector<uint32_t> drained;
  const v1::ClusterStatus status = coordinator()->membership().Status();
  for (const v1::MemberStatus& server : status.servers()) {
    if (IsOut(server.index())) continue;
    if (server.draining()) drained.push_back(server.index());
    takes += server.draining() ? 0 : 1;
  }
  v1::DrainRequest request;
  request.set_undo(true);
  for (const uint32_t server : drained) {
    if (takes++ >= shape_.replicas) return;
    request.set_server(server);
    Drain(request);
  }
}

void Cluster::WithCoordinator(std::function<void(Coordinator*)> act) {
  Machine& machine = machines_[shape_.elected ? ballot_.leader : 0];
  if (coordinator() == nullptr || machine.process->stopped) return;
  kernel_->After(0, machine.process, [&machine, act = std::move(act), process = machine.process] {
    if (machine.process == process && machine.coordinator != nullptr) act(machine.coordinator.get());
  });
}

const Coordinator* Cluster::coordinator() const {
  const Machine& machine = machines_[shape_.elected ? ballot_.leader : 0];
  return machine.coordinator != nullptr && machine.coordinator->Leads() ? machine.coordinator.get() : nullptr;
}

absl::StatusOr<std::string> Cluster::CallCoordinator(Method method, std::string request, int64_t timeout_ms) {
  Machine& machine = machines_[shape_.elected ? ballot_.leader : 0];
  const ProcessRef callee = machine.coordinator != nullptr ? machine.process : nullptr;
  const auto handler = [&machine, method](const std::string& sent, const Network::Answer& answer) {
    Coordinator* const coordinator = machine.coordinator.get();
    if (coordinator == nullptr) return answer(absl::UnavailableError("this ps is not elected"));
    switch (method) {
      case Method::kJoin:
        return coordinator->Join(sent, answer);
      case Method::kHeartbeat:
        return coordinator->Heartbeat(sent, answer);
      case Method::kRoute:
        return coordinator->Route(sent, answer);
      case Method::kReportSync:
        return coordinator->ReportSync(sent, answer);
    }
  };
  return network_->Call(callee, handler, std::move(request), timeout_ms);
}

bool Cluster::AllInSync() const {
  const Coordinator* const now = coordinator();
  if (now == nullptr || !now->AllSaved() || !now->membership().shards().mapped()) return false;
  return shape_.replicas == 1 || now->membership().shards().IsComplete();
}

bool Cluster::IsWell() const {
  if (!AllInSync()) return false;
  const server::MemberTable& members = coordinator()->membership().members();
  for (uint32_t server = 0; server < shape_.servers; ++server) {
    const Machine& machine = machines_[server];
    const server::MemberPlace& place = members.servers()[server];
    if (!machine.came) continue;
    if (machine.ps == nullptr || !machine.ps->serves() || machine.process->stopped || place.silent) return false;
    if (machine.ps->incarnation() != place.incarnation || !members.Alive(place)) return false;
  }
  return true;
}

std::string Cluster::WhatIsMissing() const {
  for (uint32_t server = 0; server < shape_.servers; ++server) {
    const Ps* const ps = machines_[server].ps.get();
    if (IsOut(server)) continue;
    if (ps == nullptr) return absl::StrCat("ps ", server, " does not run");
    if (!ps->failure().ok()) return absl::StrCat("ps ", server, " cannot begin: ", ps->failure().ToString());
    if (!ps->serves()) return absl::StrCat("ps ", server, " does not serve");
    if (const absl::Status may = machines_[server].ps->store()->gate().CheckServing(); !may.ok()) {
      return absl::StrCat("ps ", server, " may not serve: ", may.ToString());
    }
  }
  for (uint32_t client = 0; client < clients_.size(); ++client) {
    if (clients_[client] == nullptr || !clients_[client]->done())
      return absl::StrCat("client ", client, " still waits");
  }
  if (coordinator() == nullptr) return "there is no coordinator";
  const auto route = coordinator()->membership().shards().Route();
  if (!route.ok()) return absl::StrCat("there is no map: ", route.status().ToString());
  if (!AllInSync()) return "not all followers are in sync";
  const v1::ClusterStatus status = coordinator()->membership().Status();
  if (!status.moves().empty()) return absl::StrCat("a move is not done: ", status.moves(0).ShortDebugString());
  return "";
}

void Cluster::Judge() {
  const ShardMap map = *ShardMap::FromProto(*coordinator()->membership().shards().Route());
  for (uint32_t server = 0; server < shape_.servers; ++server) {
    if (!IsOut(server)) JudgeRows(server, map);
  }
  if (shape_.replicas > 1) CompareCopies(map);
}

void Cluster::JudgeRows(uint32_t server, const ShardMap& map) {
  constexpr size_t kRowsOfPull = 500;
  server::Store* const store = machines_[server].ps->store();
  std::map<ShardId, std::vector<Key>> by_shard;
  for (const LedgerPush& push : ledger_->pushes()) {
    for (const Key key : push.keys) by_shard[ShardOfKey(key, shape_.shards)].push_back(key);
  }
  for (const auto& [shard, keys] : by_shard) {
    if (map.OwnerOf(shard) != server) continue;
    for (size_t begin = 0; begin < keys.size(); begin += kRowsOfPull) {
      const std::vector<Key> some(keys.begin() + static_cast<ptrdiff_t>(begin),
                                  keys.begin() + static_cast<ptrdiff_t>(std::min(keys.size(), begin + kRowsOfPull)));
      v1::PullRequest request;
      v1::Part& part = *request.add_parts();
      part.set_shard(shard);
      part.set_table(TableIdOf(LedgerTable().name()));
      part.set_row_count(static_cast<uint32_t>(some.size()));
      std::optional<absl::StatusOr<server::PullPath::Values>> result;
      store->pulls().Pull(request, Payload({grpc::Slice(some.data(), some.size() * sizeof(Key))}),
                          [&](absl::StatusOr<server::PullPath::Values> values) { result = std::move(values); });
      LODESTONE_CHECK(result.has_value());
      if (!result->ok())
        return ledger_->Fail(absl::StrCat("ps ", server, " cannot be read at the end: ", result->status().ToString()));
      std::string bytes;
      for (const grpc::Slice& slice : (*result)->payload) {
        bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
      }
      for (size_t i = 0; i < some.size(); ++i) {
        float value = 0;
        std::memcpy(&value, bytes.data() + i * sizeof(float), sizeof(float));
        const LedgerPush& push = ledger_->pushes()[(some[i] - 1) / Ledger::kKeysMax];
        ledger_->Judge(some[i], value, push.state == LedgerPush::State::kAcknowledged,
                       absl::StrCat("at the end at ps ", server, ", shard ", shard));
      }
    }
  }
}

void Cluster::CompareCopies(const ShardMap& map) {
  for (ShardId shard = 0; shard < shape_.shards; ++shard) {
    const auto state_of = [&](uint32_t server) {
      server::Shard::State state;
      machines_[server].ps->store()->shards().Run(shard,
                                                  [&](server::Shard* held) { state = held->CollectState(nullptr); });
      return state;
    };
    auto owner = state_of(map.OwnerOf(shard));
    for (const uint32_t server : map.FollowersOf(shard)) {
      auto follower = state_of(server);
      for (auto* const state : {&owner, &follower}) {
        // Those of workers that have ended may be forgotten here and not there (README.md).
        std::erase_if(state->windows, [this](const auto& entry) { return !IsOpen(entry.first); });
      }
      if (owner.version == follower.version && server::ContentChecksum(owner) == server::ContentChecksum(follower))
        continue;
      ledger_->Fail(absl::StrCat("the copies of shard ", shard, " differ: at ps ", map.OwnerOf(shard), " ",
                                 TextOf(owner), ", at ps ", server, " ", TextOf(follower)));
    }
  }
}

bool Cluster::IsOpen(Incarnation worker) const {
  return std::any_of(clients_.begin(), clients_.end(),
                     [worker](const auto& client) { return client->incarnation() == worker; });
}

uint64_t Cluster::resent() const {
  uint64_t sum = resent_;
  for (const auto& client : clients_) sum += client == nullptr ? 0 : client->resent();
  return sum;
}

void Cluster::EndClients() {
  resent_ = resent();
  for (auto& client : clients_) {
    if (client == nullptr) continue;
    const ProcessRef process = client->process();
    process->alive = false;
    kernel_->WakeAll(process.get());
    network_->EndLinesOf(process, 0);
    client.reset();
  }
  clients_.clear();
}

void Cluster::End() {
  over_ = true;
  EndClients();
  EndServers(/*with_machine=*/0);
}

void Cluster::EndServers(double with_machine) {
  all_end_ = true;
  for (uint32_t server = 0; server < shape_.servers; ++server) {
    while (machines_[server].starting) kernel_->Wait(&machines_[server], kernel_->NowMs() + 1);
    Kill(server, kernel_->Chance(with_machine));
  }
  for (Machine& machine : machines_) {
    while (machine.ending || machine.starting) kernel_->Wait(&machine, kernel_->NowMs() + 1);
  }
  all_end_ = false;
}

void Cluster::ChangeReplicas(uint32_t replicas) {
  kernel_->Trace(absl::StrCat("starts all again with replicas=", replicas));
  EndServers(/*with_machine=*/0);
  shape_.replicas = replicas;
  for (uint32_t server = 0; server < shape_.servers; ++server) StartPs(server);
}

}  // namespace lodestone::simulation
