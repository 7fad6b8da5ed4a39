#include "worker/client/table_creator.h"

#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "worker/client/server_sessions.h"
#include "worker/rpc/server_channel.h"

namespace lodestone::worker {
namespace {

// Number of elements of a dense table; INVALID_ARGUMENT if that is 0 or beyond 64 bits.
absl::StatusOr<uint64_t> ElementsOf(const v1::TableSpec& spec) {
  uint64_t elements = 1;
  for (uint64_t dim : spec.dense().dims()) {
    if (dim == 0 || __builtin_mul_overflow(elements, dim, &elements)) {
      return absl::InvalidArgumentError(absl::StrCat("table ", spec.name(), ": its shape has no valid size"));
    }
  }
  return elements;
}

// What the answer of one server makes of `spec`; INTERNAL if it cannot be.
absl::StatusOr<TableHandle> MakeHandle(const v1::TableSpec& spec, const v1::EnsureTablesResponse::Table& answer,
                                       uint32_t shards) {
  LODESTONE_ASSIGN_OR_RETURN(TableHandle table, HandleOf(spec, shards));
  table.id = answer.id();
  if (!spec.has_dense()) return table;
  const BlockLayout& layout = table.layout;
  if (answer.block_elements() == layout.block_elements && answer.block_count() == layout.block_count()) return table;
  return absl::InternalError(absl::StrCat("table ", spec.name(), ": the server has ", answer.block_count(),
                                          " blocks of ", answer.block_elements(), " elements, expected are ",
                                          layout.block_count(), " of ", layout.block_elements));
}

// The specifications that have changed most often, by name.
using Newest = std::map<std::string, v1::TableSpec>;

template <typename Specs>
void TakeNewest(const Specs& described, Newest* newest) {
  for (const v1::TableSpec& spec : described) {
    const auto [known, inserted] = newest->try_emplace(spec.name(), spec);
    if (!inserted && spec.revision() > known->second.revision()) known->second = spec;
  }
}

}  // namespace

absl::StatusOr<TableHandle> HandleOf(const v1::TableSpec& spec, uint32_t shards) {
  TableHandle table{TableIdOf(spec.name()), spec, {}, 0};
  if (!spec.has_dense()) {
    table.dim = spec.embedding().dim();
    return table;
  }
  LODESTONE_ASSIGN_OR_RETURN(const uint64_t elements, ElementsOf(spec));
  const uint32_t block_elements = spec.dense().block_elements();
  table.layout = BlockLayout{elements, block_elements > 0 ? block_elements : DefaultBlockElements(elements, shards)};
  return table;
}

// The answers of servers that are asked at the same time.
class TableCreator::Answers {
 public:
  explicit Answers(size_t servers) : left_(servers), answers_(servers) {}

  void Set(size_t i, absl::StatusOr<Connection::Answer> answer) {
    MutexLock lock(&mu_);
    answers_[i] = std::move(answer);
    if (--left_ == 0) ended_.NotifyAll();
  }
  // When all are there.
  std::vector<absl::StatusOr<Connection::Answer>> Take() {
    MutexLock lock(&mu_);
    while (left_ > 0) ended_.Wait(&mu_);
    return std::move(answers_);
  }

 private:
  Mutex mu_;
  CondVar ended_;
  size_t left_ ABSL_GUARDED_BY(mu_);
  std::vector<absl::StatusOr<Connection::Answer>> answers_ ABSL_GUARDED_BY(mu_);
};

absl::StatusOr<v1::EnsureTablesResponse> TableCreator::ResponseOf(uint32_t server, size_t tables,
                                                                  absl::StatusOr<Connection::Answer> answer) const {
  LODESTONE_RETURN_IF_ERROR(answer.status());
  v1::EnsureTablesResponse response = std::move(*answer->header.mutable_ensure_tables());
  if (response.tables_size() == static_cast<int>(tables)) return response;
  return absl::InternalError(absl::StrCat(servers_.channels[server]->peer(), " answered for ", response.tables_size(),
                                          " tables, asked were ", tables));
}

absl::StatusOr<std::vector<TableHandle>> TableCreator::EnsureTables(const std::vector<v1::TableSpec>& specs) const {
  const std::vector<uint32_t> asked = Reachable();
  v1::EnsureTablesRequest request;
  request.set_worker_incarnation(servers_.incarnation);
  for (const v1::TableSpec& spec : specs) {
    *request.add_tables() = spec;
    request.add_describe(spec.name());  // Settings may be held, or not this caller's to change.
  }
  std::vector<Answer> taken = Ask(asked, request, "creation of tables");
  std::vector<TableHandle> tables;
  Newest newest;
  std::set<uint32_t> created;
  for (size_t i = 0; i < asked.size(); ++i) {
    const absl::StatusOr<v1::EnsureTablesResponse> response = ResponseOf(asked[i], specs.size(), std::move(taken[i]));
    if (absl::IsAborted(response.status())) continue;  // It is out by now.
    LODESTONE_RETURN_IF_ERROR(response.status());
    LODESTONE_RETURN_IF_ERROR(AddHandles(asked[i], specs, *response, &tables));
    TakeNewest(response->described(), &newest);
    created.insert(asked[i]);
  }
  if (created.empty()) return absl::UnavailableError("creation of tables: all servers are away");
  servers_.sessions->Add(specs, created);
  for (TableHandle& table : tables) {
    if (const auto found = newest.find(table.spec.name()); found != newest.end()) table.spec = found->second;
  }
  return tables;
}

absl::StatusOr<std::vector<v1::TableSpec>> TableCreator::DescribeTables(const std::vector<std::string>& names) const {
  LODESTONE_ASSIGN_OR_RETURN(const auto by_server, DescribeByServer(names));
  Newest newest;
  for (const std::vector<v1::TableSpec>& described : by_server) TakeNewest(described, &newest);
  std::vector<v1::TableSpec> specs;
  for (auto& [name, spec] : newest) specs.push_back(std::move(spec));
  return specs;
}

absl::StatusOr<std::vector<std::vector<v1::TableSpec>>> TableCreator::DescribeByServer(
    const std::vector<std::string>& names) const {
  const std::vector<uint32_t> asked = Reachable();
  v1::EnsureTablesRequest request;  // Of an observer: a session is opened with the tables.
  for (const std::string& name : names) request.add_describe(name);
  std::vector<std::vector<v1::TableSpec>> by_server;
  std::vector<Answer> taken = Ask(asked, request, "description of tables");
  for (size_t i = 0; i < asked.size(); ++i) {
    const absl::StatusOr<v1::EnsureTablesResponse> response = ResponseOf(asked[i], 0, std::move(taken[i]));
    if (absl::IsAborted(response.status())) continue;  // It is out by now.
    LODESTONE_RETURN_IF_ERROR(response.status());
    by_server.emplace_back(response->described().begin(), response->described().end());
  }
  return by_server;
}

absl::Status TableCreator::FollowOrders(uint64_t orders) const {
  servers_.sessions->FollowOrders(orders);
  const std::vector<uint32_t> asked = Reachable();
  v1::EnsureTablesRequest request;
  request.set_worker_incarnation(servers_.incarnation);
  request.set_orders(orders);
  std::vector<Answer> taken = Ask(asked, request, "announcement of the order that it follows");
  for (size_t i = 0; i < asked.size(); ++i) {
    const absl::Status told = ResponseOf(asked[i], 0, std::move(taken[i])).status();
    if (!absl::IsAborted(told)) LODESTONE_RETURN_IF_ERROR(told);  // Otherwise it is out by now.
  }
  return absl::OkStatus();
}

std::vector<uint32_t> TableCreator::Reachable() const {
  std::vector<uint32_t> reachable;
  for (uint32_t server = 0; server < servers_.channels.size(); ++server) {
    if (!IsOut(*servers_.map(), server)) reachable.push_back(server);
  }
  return reachable;
}

std::vector<TableCreator::Answer> TableCreator::Ask(const std::vector<uint32_t>& asked,
                                                    const v1::EnsureTablesRequest& request, const char* what) const {
  Answers answers(asked.size());
  for (size_t i = 0; i < asked.size(); ++i) {
    ServerChannel::Request message{.call = {}, .what = what};
    *message.call.mutable_ensure_tables() = request;
    servers_.channels[asked[i]]->Call(std::move(message), [&answers, i](Answer answer, ServerChannel::Request*) {
      answers.Set(i, std::move(answer));
    });
  }
  return answers.Take();
}

absl::Status TableCreator::AddHandles(uint32_t server, const std::vector<v1::TableSpec>& specs,
                                      const v1::EnsureTablesResponse& response,
                                      std::vector<TableHandle>* tables) const {
  const bool first = tables->empty();
  for (size_t i = 0; i < specs.size(); ++i) {
    absl::StatusOr<TableHandle> table =
        MakeHandle(specs[i], response.tables(static_cast<int>(i)), servers_.map()->shards());
    if (!table.ok()) return Annotate(table.status(), servers_.channels[server]->peer());
    if (first) {
      tables->push_back(*std::move(table));
    } else if (table->id != (*tables)[i].id) {
      return absl::InternalError(absl::StrCat("table ", specs[i].name(), " has id ", (*tables)[i].id,
                                              " on another server and ", table->id, " on ",
                                              servers_.channels[server]->peer()));
    }
  }
  return absl::OkStatus();
}

}  // namespace lodestone::worker
