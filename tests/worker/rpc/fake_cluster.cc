#include "tests/worker/rpc/fake_cluster.h"

#include <algorithm>
#include <map>

#include "common/base/check.h"
#include "common/wire/part.h"
#include "common/wire/ps_name.h"

namespace lodestone::worker {
namespace {

template <typename Message>
Message Parse(const grpc::ByteBuffer& buffer, Payload* payload) {
  Message message;
  const absl::Status status = ParseMessage(buffer, &message, payload);
  LODESTONE_CHECK(status.ok());
  return message;
}

template <typename Message>
Message Parse(const grpc::ByteBuffer& buffer) {
  Payload payload;
  return Parse<Message>(buffer, &payload);
}

grpc::ByteBuffer Build(const google::protobuf::MessageLite& header, const std::vector<float>& values) {
  const grpc::Slice payload(values.data(), values.size() * sizeof(float));
  return BuildMessage(header, {&payload, 1});
}

ByteView BytesIn(const std::string& bytes) {
  return ByteView(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

// Makes an answer brief.
void Shorten(v1::PushResponse* response) {
  for (int i = 0; i < response->shards_size(); ++i) {
    response->add_versions(response->shards(i).version());
    if (response->shards(i).duplicate()) response->add_duplicates(static_cast<uint32_t>(i));
  }
  response->clear_shards();
}

}  // namespace

std::string BytesOf(const grpc::ByteBuffer& buffer) {
  grpc::Slice slice;
  LODESTONE_CHECK(buffer.DumpToSingleSlice(&slice).ok());
  return std::string(reinterpret_cast<const char*>(slice.begin()), slice.size());
}

FakeCluster::FakeCluster(uint32_t servers, uint32_t shards) : shards_(shards), versions_(shards, 0) {
  {
    MutexLock lock(&mu_);
    addresses_.resize(servers);
    owners_ = InitialOwners(shards, servers);
    terms_.resize(shards);
    term_starts_.resize(shards);
  }
  for (uint32_t server = 0; server < servers; ++server) Listen(server);
}

FakeCluster::~FakeCluster() {
  servers_.clear();
  former_servers_.clear();
}

v1::Config FakeCluster::config() const {
  v1::Config config;
  MutexLock lock(&mu_);
  config.mutable_cluster()->set_servers(static_cast<uint32_t>(addresses_.size()));
  config.mutable_cluster()->set_shards(shards_);
  config.mutable_coordinator()->set_address(addresses_[0]);
  config.mutable_worker()->set_call_timeout_ms(60'000);
  config.mutable_worker()->set_retry_timeout_ms(60'000);
  return config;
}

void FakeCluster::Listen(uint32_t server, int port) {
  size_t place = 0;
  {
    MutexLock lock(&mu_);
    place = places_.size();
    places_.push_back({server});
  }
  servers_[server] = std::make_unique<FakeServer>(
      [this, place](std::shared_ptr<FakeCall> call) { Handle(place, std::move(call)); }, port, 64 << 20, &lists_);
  MutexLock lock(&mu_);
  addresses_[server] = servers_[server]->address();
}

void FakeCluster::Move(uint32_t server, bool still_listens) {
  std::unique_ptr<FakeServer> former = std::move(servers_[server]);
  {
    MutexLock lock(&mu_);
    for (Place& place : places_) place.answers &= place.server != server;
  }
  Listen(server);
  if (still_listens) former_servers_.push_back(std::move(former));
  former.reset();
  MutexLock lock(&mu_);
  ++epoch_;
}

void FakeCluster::Swap(uint32_t one, uint32_t other) {
  MutexLock lock(&mu_);
  for (Place& place : places_) {
    if (place.server == one) {
      place.server = other;
    } else if (place.server == other) {
      place.server = one;
    }
  }
  std::swap(addresses_[one], addresses_[other]);
  ++epoch_;
}

void FakeCluster::Restart(uint32_t server, const std::function<void()>& meanwhile) {
  const int port = servers_[server]->port();
  servers_[server].reset();
  meanwhile();
  Listen(server, port);
}

void FakeCluster::SetAway(uint32_t server, bool away) {
  MutexLock lock(&mu_);
  if (away) {
    away_.insert(server);
  } else {
    away_.erase(server);
  }
}

void FakeCluster::MoveShards(const std::map<ShardId, uint32_t>& owners) {
  MutexLock lock(&mu_);
  ++epoch_;
  for (const auto& [shard, owner] : owners) {
    owners_[shard] = owner;
    terms_[shard] = epoch_;
    term_starts_[shard] = versions_[shard];
  }
}

void FakeCluster::ForgetHistory() {
  MutexLock lock(&mu_);
  history_ = false;
}

void FakeCluster::SetFaults(Faults faults) {
  MutexLock lock(&mu_);
  faults_ = std::move(faults);
}

void FakeCluster::Handle(size_t place, std::shared_ptr<FakeCall> call) {
  MutexLock lock(&mu_);
  if (!places_[place].answers) return;
  const uint32_t server = places_[place].server;
  if (!call->meant().empty() && call->meant() != PsName(server, v1::ClusterConfig().name())) {
    call->Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "this is another ps"));
    return;
  }
  const uint64_t number = ++calls_[{server, call->method()}];
  called_.NotifyAll();
  const Fault fault = faults_ ? faults_(server, call->method(), number) : Fault::kNone;
  if (fault == Fault::kSwallow) return;
  if (fault == Fault::kTurnBack) {
    call->Finish(grpc::Status(grpc::StatusCode::ABORTED, "turned back by the test"));
    return;
  }
  if (fault == Fault::kRefuse || fault == Fault::kForget) {
    call->Finish(fault == Fault::kRefuse ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "refused by the test")
                                         : grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "who are you?"));
    return;
  }
  std::optional<grpc::ByteBuffer> answer = Work(server, call, fault);
  if (!answer.has_value()) return;
  switch (fault) {
    case Fault::kDropReply:
      call->Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "reply dropped by the test"));
      return;
    case Fault::kSilence:
      return;
    case Fault::kHold:
      held_.emplace_back(call, *std::move(answer));
      return;
    case Fault::kGarbage: {
      const grpc::Slice garbage("\x07\xff\xff garbage");
      call->Reply(grpc::ByteBuffer(&garbage, 1));
      return;
    }
    default:
      call->Reply(*std::move(answer));
  }
}

std::optional<grpc::ByteBuffer> FakeCluster::Work(uint32_t server, const std::shared_ptr<FakeCall>& call, Fault fault) {
  const bool shorten = fault == Fault::kShort;
  const std::string& method = call->method();
  if (method == "EnsureTables") return EnsureTables(server, call->request(), shorten);
  if (method == "Push") return Push(server, call.get(), fault);
  if (method == "Pull") return Pull(server, call.get(), shorten);
  if (method == "PushPull") return PushPull(server, call.get(), shorten);
  if (method == "Route") return BuildMessage(Route(), {});
  if (method == "Subscribe") {
    Subscribe(server, call);
    return std::nullopt;
  }
  if (method == "Join") {
    v1::JoinResponse response;
    response.set_index(joined_++);
    response.set_incarnation(1000 + joined_);
    response.set_lease_ms(10'000);
    return BuildMessage(response, {});
  }
  if (method == "Heartbeat") {
    heartbeats_.push_back(Parse<v1::HeartbeatRequest>(call->request()));
    v1::HeartbeatResponse response;
    response.set_route_epoch(epoch_);
    return BuildMessage(response, {});
  }
  if (method == "AwaitClock") {
    v1::AwaitClockResponse response;
    response.set_reached(calls_[{server, method}] > 1);
    if (!response.reached()) response.add_waiting_for("worker 7 at clock 3");
    return BuildMessage(response, {});
  }
  call->Finish(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, method));
  return std::nullopt;
}

v1::RouteResponse FakeCluster::Route() const {
  v1::RouteResponse route;
  route.set_epoch(epoch_);
  for (uint32_t server = 0; server < addresses_.size(); ++server) {
    auto* entry = route.add_servers();
    entry->set_address(addresses_[server]);
    entry->set_away(away_.contains(server));
  }
  route.mutable_owners()->Add(owners_.begin(), owners_.end());
  route.mutable_terms()->Add(terms_.begin(), terms_.end());
  return route;
}

bool FakeCluster::TurnBack(uint32_t server, Incarnation worker,
                           const google::protobuf::RepeatedPtrField<v1::Part>& parts, FakeCall* call) {
  for (const v1::Part& part : parts) {
    if (owners_[part.shard()] == server) continue;
    call->Finish(grpc::Status(grpc::StatusCode::ABORTED, "shard " + std::to_string(part.shard()) + " is not here"));
    return true;
  }
  if (sessions_.contains({server, worker})) return false;
  call->Finish(grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "no session"));
  return true;
}

void FakeCluster::Subscribe(uint32_t server, const std::shared_ptr<FakeCall>& call) {
  const auto request = Parse<v1::SubscribeRequest>(call->request());
  subscribed_[server] = request;
  Stream stream{server, call, {}, {}};
  for (const auto& table : request.tables()) stream.tables.insert(table.table());
  for (const auto& held : request.held()) {
    const ShardId shard = held.shard();
    if (!history_ || owners_[shard] != server) continue;
    if (held.term() == terms_[shard] || held.version() <= term_starts_[shard]) stream.sent[shard] = held.version();
  }
  streams_.push_back(std::move(stream));
  SendDelta(&streams_.back(), false);
}

grpc::ByteBuffer FakeCluster::EnsureTables(uint32_t server, const grpc::ByteBuffer& request, bool shorten) {
  v1::EnsureTablesResponse response;
  const auto asked = Parse<v1::EnsureTablesRequest>(request);
  sessions_.insert({server, asked.worker_incarnation()});
  for (const v1::TableSpec& spec : asked.tables()) {
    auto* answer = response.add_tables();
    answer->set_id(TableIdOf(spec.name()));
    Table& table = tables_[answer->id()];
    table.spec = spec;
    if (!spec.has_dense()) continue;
    table.layout.elements = 1;
    for (uint64_t dim : spec.dense().dims()) table.layout.elements *= dim;
    table.layout.block_elements = spec.dense().block_elements() > 0
                                      ? spec.dense().block_elements()
                                      : DefaultBlockElements(table.layout.elements, shards_);
    answer->set_block_elements(table.layout.block_elements);
    answer->set_block_count(table.layout.block_count() - (shorten ? 1 : 0));
    for (BlockIndex block = 0; block < table.layout.block_count(); ++block) {
      table.blocks[block].resize(table.layout.ElementsOf(block));
    }
  }
  return BuildMessage(response, {});
}

void FakeCluster::ApplyPart(const v1::Part& part, ByteView* all_keys, ByteView* payload, bool apply) {
  Table& table = tables_.at(part.table());
  const auto add = [&](std::vector<float>* values, size_t count) {
    LODESTONE_CHECK(count * sizeof(float) <= payload->size());
    const ByteView gradient = payload->Take(count * sizeof(float));
    values->resize(count);
    for (size_t i = 0; apply && i < count; ++i) (*values)[i] += gradient.Load<float>(i);
  };
  for (BlockIndex block : part.blocks()) {
    LODESTONE_CHECK(ShardOfBlock(part.table(), block, shards_) == part.shard());
    add(&table.blocks.at(block), table.layout.ElementsOf(block));
    if (apply) table.block_versions[block] = versions_[part.shard()];
  }
  LODESTONE_CHECK(part.row_count() * sizeof(Key) <= all_keys->size());
  const ByteView keys = all_keys->Take(part.row_count() * sizeof(Key));
  for (uint32_t i = 0; i < part.row_count(); ++i) {
    const Key key = keys.Load<Key>(i);
    LODESTONE_CHECK(ShardOfKey(key, shards_) == part.shard());
    add(&table.rows[key], table.spec.embedding().dim());
  }
}

v1::PushResponse FakeCluster::Apply(const v1::PushRequest& request, ByteView* keys, ByteView* values) {
  v1::PushResponse response;
  std::map<ShardId, bool> fresh;
  for (const v1::Part& part : request.parts()) {
    const auto [shard, is_first] = fresh.try_emplace(part.shard(), false);
    if (is_first) {
      shard->second = marks_.insert({request.worker_incarnation(), request.sequence(), part.shard()}).second;
      if (shard->second) ++versions_[part.shard()];
      auto* result = response.add_shards();
      result->set_shard(part.shard());
      result->set_version(versions_[part.shard()]);
      result->set_duplicate(!shard->second);
    }
    ApplyPart(part, keys, values, shard->second);
  }
  return response;
}

v1::PullResponse FakeCluster::Read(const v1::PullRequest& request, ByteView keys, std::vector<float>* values) {
  v1::PullResponse response;
  for (const v1::Part& part : request.parts()) {
    Table& table = tables_.at(part.table());
    v1::Part* answer = response.add_parts();
    *answer = part;
    response.add_shard_versions(versions_[part.shard()]);
    for (BlockIndex block : part.blocks()) {
      answer->add_block_versions(table.block_versions[block]);
      values->insert(values->end(), table.blocks.at(block).begin(), table.blocks.at(block).end());
    }
    for (uint32_t i = 0; i < part.row_count(); ++i) {
      LODESTONE_CHECK(keys.size() >= sizeof(Key));
      std::vector<float>& row = table.rows[keys.Take(sizeof(Key)).Load<Key>(0)];
      row.resize(table.spec.embedding().dim());
      values->insert(values->end(), row.begin(), row.end());
    }
  }
  LODESTONE_CHECK(keys.empty());
  return response;
}

void FakeCluster::MakePlain(google::protobuf::RepeatedPtrField<v1::Part>* parts, bool keys_in_parts, bool has_values,
                            ByteView* from, std::string* payload) {
  google::protobuf::RepeatedPtrField<v1::Part> plain;
  const auto append = [&](ByteView bytes) {
    payload->resize(payload->size() + bytes.size());
    bytes.CopyTo(reinterpret_cast<uint8_t*>(payload->data()) + payload->size() - bytes.size());
  };
  for (const v1::Part& part : *parts) {
    LODESTONE_CHECK(part.shards_size() == 0 || lists_.several_shards);
    if (part.shards_size() > 0) ++lists_.parts_of_several;
    const Table& table = tables_.at(part.table());
    size_t rows = 0;
    ForEachShard(part, [&](ShardId, uint32_t row_count) { rows += row_count; });
    const size_t row_bytes = has_values ? table.spec.embedding().dim() * sizeof(float) : 0;
    const size_t key_bytes = keys_in_parts ? sizeof(Key) : 0;
    size_t block_bytes = 0;
    for (const BlockIndex block : part.blocks()) block_bytes += table.layout.ElementsOf(block) * sizeof(float);
    ByteView keys = from->Take(rows * key_bytes);
    ByteView values = from->Take(rows * row_bytes + (has_values ? block_bytes : 0));
    int place = 0;
    ForEachShard(part, [&](ShardId shard, uint32_t row_count) {
      v1::Part* const one = plain.Add();
      *one = part;
      one->clear_read_versions();
      if (place < part.read_versions_size()) one->add_read_versions(part.read_versions(place));
      ++place;
      one->clear_shards();
      one->clear_row_counts();
      one->set_shard(shard);
      one->set_row_count(row_count);
      append(keys.Take(row_count * key_bytes));
      append(part.blocks().empty() ? values.Take(row_count * row_bytes) : values);
    });
  }
  parts->Swap(&plain);
}

std::optional<grpc::ByteBuffer> FakeCluster::Push(uint32_t server, FakeCall* call, Fault fault) {
  Payload received;
  auto request = Parse<v1::PushRequest>(call->request(), &received);
  ByteView from = received.bytes();
  std::string payload;
  MakePlain(request.mutable_parts(), !call->keys().has_value(), true, &from, &payload);
  LODESTONE_CHECK(from.empty());
  const grpc::Slice slice(payload);
  pushes_.push_back(Seen{server, BytesOf(BuildMessage(request, {&slice, 1})), request, call->peer()});
  if (TurnBack(server, request.worker_incarnation(), request.parts(), call)) return std::nullopt;
  ByteView rest = BytesIn(payload);
  ByteView keys = call->keys().has_value() ? call->keys()->bytes() : ByteView();
  v1::PushResponse response = Apply(request, call->keys().has_value() ? &keys : &rest, &rest);
  LODESTONE_CHECK(rest.empty() && keys.empty());
  if (fault == Fault::kShort) response.mutable_shards()->RemoveLast();
  if (request.brief() && lists_.several_shards) Shorten(&response);
  if (fault == Fault::kStrange) response.add_duplicates(static_cast<uint32_t>(response.versions_size()));
  return BuildMessage(response, {});
}

std::optional<grpc::ByteBuffer> FakeCluster::Pull(uint32_t server, FakeCall* call, bool shorten) {
  Payload received;
  auto request = Parse<v1::PullRequest>(call->request(), &received);
  ByteView from = received.bytes();
  std::string payload;
  MakePlain(request.mutable_parts(), !call->keys().has_value(), false, &from, &payload);
  pulls_.emplace_back(server, request);
  if (TurnBack(server, request.worker_incarnation(), request.parts(), call)) return std::nullopt;
  std::vector<float> values;
  v1::PullResponse response =
      Read(request, call->keys().has_value() ? call->keys()->bytes() : BytesIn(payload), &values);
  if (request.brief() && lists_.several_shards) response.clear_parts();
  if (shorten) values.pop_back();
  return Build(response, values);
}

std::optional<grpc::ByteBuffer> FakeCluster::PushPull(uint32_t server, FakeCall* call, bool shorten) {
  Payload received;
  auto request = Parse<v1::PushPullRequest>(call->request(), &received);
  ByteView from = received.bytes();
  std::string payload;
  const bool in_parts = !call->keys().has_value();
  MakePlain(request.mutable_push()->mutable_parts(), in_parts, true, &from, &payload);
  MakePlain(request.mutable_pull()->mutable_parts(), in_parts, false, &from, &payload);
  const grpc::Slice slice(payload);
  pushes_.push_back(Seen{server, BytesOf(BuildMessage(request, {&slice, 1})), request.push(), call->peer()});
  if (TurnBack(server, request.push().worker_incarnation(), request.push().parts(), call)) return std::nullopt;
  if (TurnBack(server, request.pull().worker_incarnation(), request.pull().parts(), call)) return std::nullopt;
  ByteView rest = BytesIn(payload);
  ByteView keys = call->keys().has_value() ? call->keys()->bytes() : ByteView();
  v1::PushPullResponse response;
  *response.mutable_push() = Apply(request.push(), call->keys().has_value() ? &keys : &rest, &rest);
  std::vector<float> values;
  *response.mutable_pull() = Read(request.pull(), call->keys().has_value() ? keys : rest, &values);
  LODESTONE_CHECK(!call->keys().has_value() || rest.empty());
  if (lists_.several_shards) {
    if (request.push().brief()) Shorten(response.mutable_push());
    if (request.pull().brief()) response.mutable_pull()->clear_parts();
  }
  if (shorten) values.pop_back();
  return Build(response, values);
}

void FakeCluster::SendDelta(Stream* stream, bool gap) {
  v1::Delta delta;
  std::vector<float> values;
  for (ShardId shard = 0; shard < shards_; ++shard) {
    if (owners_[shard] != stream->server) continue;
    auto* change = delta.add_shards();
    change->set_shard(shard);
    change->set_anchor(!stream->sent.contains(shard));
    anchors_ += change->anchor() ? 1 : 0;
    change->set_from_version(gap ? stream->sent[shard] + 1000 : stream->sent[shard]);
    change->set_version(versions_[shard]);
    change->set_term(terms_[shard]);
    change->set_complete(true);
    stream->sent[shard] = versions_[shard];
    for (TableId id : stream->tables) {
      Table& table = tables_.at(id);
      v1::Part* part = change->add_parts();
      part->set_shard(shard);
      part->set_table(id);
      for (const auto& [block, block_values] : table.blocks) {
        if (ShardOfBlock(id, block, shards_) != shard) continue;
        part->add_blocks(block);
        part->add_block_versions(table.block_versions[block]);
        values.insert(values.end(), block_values.begin(), block_values.end());
      }
    }
  }
  stream->call->Write(Build(delta, values));
}

void FakeCluster::Broadcast(uint32_t server, bool gap) {
  MutexLock lock(&mu_);
  for (Stream& stream : streams_) {
    if (stream.server == server && !stream.call->over()) SendDelta(&stream, gap);
  }
}

void FakeCluster::EndStreams(uint32_t server) {
  MutexLock lock(&mu_);
  for (Stream& stream : streams_) {
    if (stream.server == server) stream.call->Finish(grpc::Status::OK);
  }
}

void FakeCluster::ReleaseHeld() {
  MutexLock lock(&mu_);
  for (auto held = held_.rbegin(); held != held_.rend(); ++held) held->first->Reply(held->second);
  held_.clear();
}

std::vector<FakeCluster::Seen> FakeCluster::pushes() const {
  MutexLock lock(&mu_);
  return pushes_;
}

std::vector<std::pair<uint32_t, v1::PullRequest>> FakeCluster::pulls() const {
  MutexLock lock(&mu_);
  return pulls_;
}

std::vector<v1::HeartbeatRequest> FakeCluster::heartbeats() const {
  MutexLock lock(&mu_);
  return heartbeats_;
}

v1::SubscribeRequest FakeCluster::subscribed(uint32_t server) const {
  MutexLock lock(&mu_);
  return subscribed_.at(server);
}

uint64_t FakeCluster::anchors() const {
  MutexLock lock(&mu_);
  return anchors_;
}

uint64_t FakeCluster::calls(uint32_t server, const std::string& method) const {
  MutexLock lock(&mu_);
  const auto calls = calls_.find({server, method});
  return calls == calls_.end() ? 0 : calls->second;
}

void FakeCluster::AwaitCalls(uint32_t server, const std::string& method, uint64_t calls) {
  MutexLock lock(&mu_);
  while (calls_[{server, method}] < calls) called_.Wait(&mu_);
}

float FakeCluster::ValueOf(TableId table, uint64_t element) const {
  MutexLock lock(&mu_);
  const Table& found = tables_.at(table);
  return found.blocks.at(static_cast<BlockIndex>(element / found.layout.block_elements))
      .at(element % found.layout.block_elements);
}

std::vector<float> FakeCluster::RowOf(TableId table, Key key) const {
  MutexLock lock(&mu_);
  const Table& found = tables_.at(table);
  const auto row = found.rows.find(key);
  return row == found.rows.end() ? std::vector<float>(found.spec.embedding().dim()) : row->second;
}

}  // namespace lodestone::worker
