#include "worker/capi/lodestone.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/telemetry/log.h"
#include "proto/config.pb.h"
#include "proto/coordinator.pb.h"
#include "worker/capi/broadcast_copy.h"
#include "worker/capi/c_status.h"
#include "worker/capi/call.h"
#include "worker/capi/fork_guard.h"
#include "worker/capi/handles.h"
#include "worker/capi/settings.h"
#include "worker/capi/status_query.h"
#include "worker/capi/transfers.h"
#include "worker/client/client.h"
#include "worker/client/table_creator.h"

namespace lodestone::worker {
namespace {

// Refuses forked children and NULL.
template <typename... Pointers>
absl::Status CheckCall(const Pointers*... pointers) {
  LODESTONE_RETURN_IF_ERROR(CheckNotForked());
  if ((... && (pointers != nullptr))) return absl::OkStatus();
  return absl::InvalidArgumentError("a handle, or where the result goes, is NULL");
}

// Refuses NULL for an array that has elements.
template <typename Element>
absl::Status CheckArray(std::span<Element> array) {
  if (array.data() != nullptr || array.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("an array of ", array.size(), " is NULL"));
}

// Refuses observers as well.
template <typename... Pointers>
absl::Status CheckWorkersCall(const lodestone_client* client, const Pointers*... pointers) {
  LODESTONE_RETURN_IF_ERROR(CheckCall(client, pointers...));
  if (client->client != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this client observes the cluster, and only reads: connect as a worker to train");
}

absl::Status Connect(const char* text, bool observe, lodestone_client** out) {
  LODESTONE_RETURN_IF_ERROR(CheckCall(text, out));
  LODESTONE_ASSIGN_OR_RETURN(const v1::Config config, ReadClientConfig(text));
  GuardForks();
  // Debian's build of Abseil looks for lock cycles at every lock of gRPC's.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  auto handle = std::make_unique<lodestone_client>();
  if (observe) {
    LODESTONE_ASSIGN_OR_RETURN(handle->reader, ClusterReader::Observe(config));
  } else {
    LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<Client> client, Client::Connect(config));
    handle->client = client.get();
    handle->reader = std::move(client);
  }
  *out = handle.release();
  return absl::OkStatus();
}

absl::Status Status(const char* text, char** json) {
  LODESTONE_RETURN_IF_ERROR(CheckCall(text, json));
  LODESTONE_ASSIGN_OR_RETURN(const v1::Config config, ReadClientConfig(text));
  GuardForks();
  LODESTONE_ASSIGN_OR_RETURN(const v1::StatusResponse status, QueryStatus(config));
  *json = strdup(JsonOf(status).c_str());
  return absl::OkStatus();
}

void Keep(lodestone_client* client, TableHandle table, lodestone_table** out) {
  std::string json = JsonOf(table.spec);
  MutexLock lock(&client->mu);
  *out = &client->tables.emplace_back(lodestone_table{std::move(table), std::move(json)});
}

absl::Status OpenTable(lodestone_client* client, const v1::TableSpec& spec, lodestone_table** out) {
  LODESTONE_ASSIGN_OR_RETURN(std::vector<TableHandle> made, client->reader->EnsureTables({spec}));
  Keep(client, std::move(made[0]), out);
  return absl::OkStatus();
}

absl::Status OpenTable(lodestone_client* client, const char* text, lodestone_table** out) {
  LODESTONE_RETURN_IF_ERROR(CheckCall(client, text, out));
  LODESTONE_ASSIGN_OR_RETURN(const v1::TableSpec spec, ReadTableSpec(text));
  return OpenTable(client, spec, out);
}

absl::Status FindTable(lodestone_client* client, const char* name, lodestone_table** out) {
  LODESTONE_RETURN_IF_ERROR(CheckCall(client, name, out));
  LODESTONE_ASSIGN_OR_RETURN(const auto by_server, client->reader->DescribeByServer({name}));
  const v1::TableSpec* newest = nullptr;
  bool everywhere = true;
  for (const std::vector<v1::TableSpec>& described : by_server) {
    everywhere = everywhere && !described.empty();
    if (described.empty()) continue;
    if (newest == nullptr || described[0].revision() > newest->revision()) newest = &described[0];
  }
  if (newest == nullptr) return absl::NotFoundError(absl::StrCat("the cluster has no table `", name, "`"));
  const bool opens_session = client->client != nullptr;
  if (opens_session || !everywhere) return OpenTable(client, *newest, out);
  // An observer's role does not allow it to make tables.
  LODESTONE_ASSIGN_OR_RETURN(TableHandle table, HandleOf(*newest, client->reader->shard_map()->shards()));
  Keep(client, std::move(table), out);
  return absl::OkStatus();
}

ReadVersions VersionsOf(const lodestone_client& client, const lodestone_read_versions* from) {
  ReadVersions versions;
  if (from == nullptr) return versions;
  const size_t shards = client.reader->shard_map()->shards();
  if (from->dense != nullptr) versions.dense.assign(from->dense, from->dense + shards);
  if (from->rows != nullptr) versions.rows.assign(from->rows, from->rows + shards);
  return versions;
}

absl::Status Push(lodestone_client* client, uint64_t clock, std::span<const lodestone_gradients> gradients,
                  const lodestone_read_versions* versions, lodestone_call** out) {
  LODESTONE_RETURN_IF_ERROR(CheckWorkersCall(client, out));
  LODESTONE_RETURN_IF_ERROR(CheckArray(gradients));
  Gradients taken;
  LODESTONE_RETURN_IF_ERROR(TakeGradients(gradients.data(), gradients.size(), &taken));
  const auto call = std::make_shared<Call>();
  LODESTONE_RETURN_IF_ERROR(
      client->client->Push(clock, taken.dense, taken.rows, VersionsOf(*client, versions),
                           [call](const PushResult& result) { call->Finish(result.status, {}); }));
  *out = new lodestone_call{call};
  return absl::OkStatus();
}

absl::Status Pull(lodestone_client* client, std::span<const lodestone_destination> destinations, lodestone_call** out) {
  LODESTONE_RETURN_IF_ERROR(CheckCall(client, out));
  LODESTONE_RETURN_IF_ERROR(CheckArray(destinations));
  const auto call = std::make_shared<Call>();
  Destinations taken;
  LODESTONE_RETURN_IF_ERROR(TakeDestinations(destinations.data(), destinations.size(), call.get(), &taken));
  *out = new lodestone_call{call};
  client->reader->Pull(std::move(taken.dense), std::move(taken.rows), [call](absl::Status status, ShardVersions read) {
    call->Finish(std::move(status), std::move(read));
  });
  return absl::OkStatus();
}

absl::Status PushPull(lodestone_client* client, uint64_t clock, std::span<const lodestone_gradients> gradients,
                      const lodestone_read_versions* versions, std::span<const lodestone_destination> destinations,
                      lodestone_call** out) {
  LODESTONE_RETURN_IF_ERROR(CheckWorkersCall(client, out));
  LODESTONE_RETURN_IF_ERROR(CheckArray(gradients));
  LODESTONE_RETURN_IF_ERROR(CheckArray(destinations));
  Gradients taken;
  LODESTONE_RETURN_IF_ERROR(TakeGradients(gradients.data(), gradients.size(), &taken));
  const auto call = std::make_shared<Call>();
  Destinations wanted;
  LODESTONE_RETURN_IF_ERROR(TakeDestinations(destinations.data(), destinations.size(), call.get(), &wanted));
  LODESTONE_RETURN_IF_ERROR(client->client->PushPull(
      clock, taken.dense, taken.rows, VersionsOf(*client, versions), std::move(wanted.dense), std::move(wanted.rows),
      [call](const PushResult& result, ShardVersions read) { call->Finish(result.status, std::move(read)); }));
  *out = new lodestone_call{call};
  return absl::OkStatus();
}

absl::Status Subscribe(lodestone_client* client, std::span<lodestone_table* const> tables,
                       lodestone_subscription** out) {
  LODESTONE_RETURN_IF_ERROR(CheckCall(client, out));
  LODESTONE_RETURN_IF_ERROR(CheckArray(tables));
  std::vector<const TableHandle*> handles;
  for (const lodestone_table* table : tables) {
    LODESTONE_RETURN_IF_ERROR(CheckCall(table));
    handles.push_back(&table->handle);
  }
  if (handles.empty()) return absl::InvalidArgumentError("a subscription needs a table");
  absl::flat_hash_set<TableId> followed;
  for (const TableHandle* table : handles) {
    if (!table->spec.has_dense()) {
      return absl::InvalidArgumentError(
          absl::StrCat("table `", table->spec.name(), "` is not dense: lodestone_subscribe_rows follows its rows"));
    }
    if (followed.insert(table->id).second) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("table `", table->spec.name(), "` is given twice: a subscription follows each table once"));
  }
  const auto copy = std::make_shared<BroadcastCopy>(handles, client->reader->shard_map()->shards());
  LODESTONE_ASSIGN_OR_RETURN(
      const SubscriptionId id,
      client->reader->Subscribe(
          handles, {.on_anchor = [copy](ShardId shard) { copy->OnAnchor(shard); },
                    .on_block = [copy](const BlockUpdate& update) { copy->OnBlock(update); },
                    .on_shard = [copy](ShardId shard, Version version) { copy->OnShard(shard, version); }}));
  *out = new lodestone_subscription{.id = id, .dense = copy};
  return absl::OkStatus();
}

absl::Status SubscribeRows(lodestone_client* client, const lodestone_table* table, std::span<const Key> keys,
                           lodestone_subscription** out) {
  LODESTONE_RETURN_IF_ERROR(CheckCall(client, table, out));
  const TableHandle& handle = table->handle;
  if (handle.spec.has_dense()) {
    return absl::InvalidArgumentError(
        absl::StrCat("table `", handle.spec.name(), "` is dense: lodestone_subscribe follows it"));
  }
  if (keys.empty() || keys.data() == nullptr) return absl::InvalidArgumentError("a subscription to rows needs keys");
  if (keys.size() > limits::kRowsPerBatchMax) {
    return absl::InvalidArgumentError(absl::StrCat("a subscription to rows of table `", handle.spec.name(), "` has ",
                                                   keys.size(), " keys; at most ", limits::kRowsPerBatchMax,
                                                   " are allowed"));
  }
  const auto copy = std::make_shared<RowCopy>(handle, keys, client->reader->shard_map()->shards());
  LODESTONE_ASSIGN_OR_RETURN(
      const SubscriptionId id,
      client->reader->Subscribe(
          {&handle}, {.on_anchor = [copy](ShardId shard) { copy->OnAnchor(shard); },
                      .on_rows = [copy](const RowsOfShard& update) { copy->OnRows(update); },
                      .on_shard = [copy](ShardId shard, Version version) { copy->OnShard(shard, version); }}));
  *out = new lodestone_subscription{.id = id, .rows = copy};
  return absl::OkStatus();
}

absl::Status Unsubscribe(lodestone_client* client, lodestone_subscription* subscription) {
  LODESTONE_RETURN_IF_ERROR(CheckCall(client, subscription));
  client->reader->Unsubscribe(subscription->id);
  return absl::OkStatus();
}

// Copies nothing to NULL.
void CopyVersions(std::span<const Version> from, uint64_t* to, size_t shards) {
  if (to == nullptr) return;
  std::fill_n(to, shards, 0);
  std::copy_n(from.begin(), std::min(from.size(), shards), to);
}

absl::Status Copy(lodestone_subscription* subscription, float* const* values, uint64_t since, uint64_t* stamp,
                  uint64_t* versions, size_t shards) {
  LODESTONE_RETURN_IF_ERROR(CheckCall(subscription, values, stamp));
  if (subscription->dense == nullptr) return absl::InvalidArgumentError("the subscription is of rows");
  ShardVersions read;
  BroadcastCopy& copy = *subscription->dense;
  const std::span<float* const> arrays(values, copy.tables());
  for (const float* array : arrays) LODESTONE_RETURN_IF_ERROR(CheckCall(array));
  LODESTONE_RETURN_IF_ERROR(copy.Copy(arrays, since, stamp, &read));
  CopyVersions(read, versions, shards);
  return absl::OkStatus();
}

absl::Status CopyRows(lodestone_subscription* subscription, float* values, uint8_t* present, uint64_t since,
                      uint64_t* stamp, uint64_t* versions, size_t shards) {
  LODESTONE_RETURN_IF_ERROR(CheckCall(subscription, values, present, stamp));
  if (subscription->rows == nullptr) return absl::InvalidArgumentError("the subscription is of dense tables");
  ShardVersions read;
  LODESTONE_RETURN_IF_ERROR(subscription->rows->Copy(values, present, since, stamp, &read));
  CopyVersions(read, versions, shards);
  return absl::OkStatus();
}

absl::Status Wait(lodestone_call* call, int64_t timeout_ms, int* done) {
  LODESTONE_RETURN_IF_ERROR(CheckCall(call, done));
  const std::optional<absl::Status> status = call->call->Wait(timeout_ms);
  *done = status.has_value();
  return status.value_or(absl::OkStatus());
}

absl::Status AwaitClock(lodestone_client* client, uint64_t clock) {
  LODESTONE_RETURN_IF_ERROR(CheckWorkersCall(client));
  return client->client->AwaitClock(clock).status();
}

absl::Status ReportProgress(lodestone_client* client, uint64_t clock, uint64_t samples, float loss) {
  LODESTONE_RETURN_IF_ERROR(CheckWorkersCall(client));
  v1::WorkerProgress progress;
  progress.set_phase(v1::PHASE_TRAINING);
  progress.set_clock(clock);
  progress.set_samples(samples);
  progress.set_loss(loss);
  client->client->ReportProgress(progress);
  return absl::OkStatus();
}

}  // namespace
}  // namespace lodestone::worker

namespace worker = lodestone::worker;
using lodestone::worker::Report;

int lodestone_abi() { return LODESTONE_ABI; }
const char* lodestone_version() { return lodestone::kVersion; }
const char* lodestone_error_message() { return worker::LastErrorMessage(); }

void lodestone_set_log(int level, lodestone_log_function function, void* user) {
  if (!worker::CheckNotForked().ok()) return;
  lodestone::SetLogLevel(static_cast<lodestone::LogLevel>(std::clamp(level, 0, 4)));
  if (function == nullptr) {
    lodestone::SetLogSink(nullptr);
    return;
  }
  lodestone::SetLogSink([=](lodestone::LogLevel of, const std::string& component, const std::string& text) {
    function(static_cast<int>(of), component.c_str(), text.c_str(), user);
  });
}

int lodestone_connect(const char* config, lodestone_client** client) {
  return Report(worker::Connect(config, /*observe=*/false, client));
}
int lodestone_observe(const char* config, lodestone_client** client) {
  return Report(worker::Connect(config, /*observe=*/true, client));
}
void lodestone_disconnect(lodestone_client* client) {
  if (worker::CheckNotForked().ok()) delete client;
}
uint32_t lodestone_index(const lodestone_client* client) {
  return client->client == nullptr ? UINT32_MAX : client->client->index();
}
size_t lodestone_shards(const lodestone_client* client) { return client->reader->shard_map()->shards(); }
int lodestone_health(lodestone_client* client) {
  const absl::Status status = worker::CheckCall(client);
  return Report(status.ok() ? client->reader->Health() : status);
}
int lodestone_status(const char* config, char** json) { return Report(worker::Status(config, json)); }
void lodestone_free(char* text) { std::free(text); }

int lodestone_table_open(lodestone_client* client, const char* spec, lodestone_table** table) {
  return Report(worker::OpenTable(client, spec, table));
}
int lodestone_table_find(lodestone_client* client, const char* name, lodestone_table** table) {
  return Report(worker::FindTable(client, name, table));
}
const char* lodestone_table_spec(const lodestone_table* table) { return table->spec_json.c_str(); }
uint64_t lodestone_table_elements(const lodestone_table* table) {
  return table->handle.spec.has_dense() ? table->handle.layout.elements : 0;
}
uint32_t lodestone_table_dim(const lodestone_table* table) {
  return table->handle.spec.has_dense() ? 0 : table->handle.dim;
}

int lodestone_push(lodestone_client* client, uint64_t clock, const lodestone_gradients* gradients, size_t count,
                   const lodestone_read_versions* versions, lodestone_call** call) {
  return Report(worker::Push(client, clock, {gradients, count}, versions, call));
}
int lodestone_pull(lodestone_client* client, const lodestone_destination* destinations, size_t count,
                   lodestone_call** call) {
  return Report(worker::Pull(client, {destinations, count}, call));
}
int lodestone_push_pull(lodestone_client* client, uint64_t clock, const lodestone_gradients* gradients,
                        size_t gradients_count, const lodestone_read_versions* versions,
                        const lodestone_destination* destinations, size_t destinations_count, lodestone_call** call) {
  return Report(worker::PushPull(client, clock, {gradients, gradients_count}, versions,
                                 {destinations, destinations_count}, call));
}
int lodestone_flush(lodestone_client* client) {
  const absl::Status status = worker::CheckWorkersCall(client);
  return Report(status.ok() ? client->client->Flush() : status);
}
int lodestone_report(lodestone_client* client, uint64_t clock, uint64_t samples, float loss) {
  return Report(worker::ReportProgress(client, clock, samples, loss));
}
int lodestone_await_clock(lodestone_client* client, uint64_t clock) {
  return Report(worker::AwaitClock(client, clock));
}

int lodestone_call_wait(lodestone_call* call, int64_t timeout_ms, int* done) {
  return Report(worker::Wait(call, timeout_ms, done));
}
int lodestone_call_on_done(lodestone_call* call, lodestone_done_function function, void* user) {
  absl::Status status = worker::CheckCall(call);
  if (status.ok() && function == nullptr) status = absl::InvalidArgumentError("the function is NULL");
  return Report(status.ok() ? call->call->OnDone([=] { function(call, user); }) : status);
}
int lodestone_call_status(lodestone_call* call) {
  int done = 0;
  return Report(worker::Wait(call, 0, &done));
}
void lodestone_call_versions(lodestone_call* call, uint64_t* versions, size_t shards) {
  worker::CopyVersions(call->call->versions(), versions, shards);
}
void lodestone_call_release(lodestone_call* call) {
  if (call == nullptr || !worker::CheckNotForked().ok()) return;
  call->call->ForgetOnDone();
  delete call;
}

int lodestone_subscribe(lodestone_client* client, lodestone_table* const* tables, size_t count,
                        lodestone_subscription** subscription) {
  return Report(worker::Subscribe(client, {tables, count}, subscription));
}
int lodestone_subscribe_rows(lodestone_client* client, lodestone_table* table, const uint64_t* keys, size_t count,
                             lodestone_subscription** subscription) {
  return Report(worker::SubscribeRows(client, table, {keys, count}, subscription));
}
int lodestone_subscription_wait(lodestone_subscription* subscription, int64_t timeout_ms, uint64_t* stamp) {
  const absl::Status status = worker::CheckCall(subscription, stamp);
  if (status.ok()) *stamp = std::max(*stamp, subscription->shards().Wait(*stamp, timeout_ms));
  return Report(status);
}
int lodestone_subscription_copy(lodestone_subscription* subscription, float* const* values, uint64_t since,
                                uint64_t* stamp, uint64_t* versions, size_t shards) {
  return Report(worker::Copy(subscription, values, since, stamp, versions, shards));
}
int lodestone_subscription_copy_rows(lodestone_subscription* subscription, float* values, uint8_t* present,
                                     uint64_t since, uint64_t* stamp, uint64_t* versions, size_t shards) {
  return Report(worker::CopyRows(subscription, values, present, since, stamp, versions, shards));
}
int lodestone_unsubscribe(lodestone_client* client, lodestone_subscription* subscription) {
  return Report(worker::Unsubscribe(client, subscription));
}
void lodestone_subscription_release(lodestone_subscription* subscription) {
  if (worker::CheckNotForked().ok()) delete subscription;
}
