#include "tools/psctl/model/model_cluster.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "proto/config.pb.h"
#include "tools/psctl/client/admin_client.h"
#include "tools/psctl/client/client_security.h"
#include "tools/psctl/model/predictor.h"
#include "worker/model/description_check.h"
#include "worker/model/model_description.h"

namespace lodestone::psctl {
namespace {

// Whether a table has the shape that the model needs.
bool IsOfShape(const v1::TableSpec& table, const v1::TableSpec& wanted) {
  if (wanted.has_embedding()) return table.has_embedding() && table.embedding().dim() == wanted.embedding().dim();
  return table.has_dense() && std::equal(table.dense().dims().begin(), table.dense().dims().end(),
                                         wanted.dense().dims().begin(), wanted.dense().dims().end());
}

}  // namespace

ModelCluster::ModelCluster(const std::string& address) : name_(absl::StrCat("the cluster of ", address)) {}

absl::StatusOr<std::unique_ptr<ModelCluster>> ModelCluster::Open(const std::string& address, const Options& options) {
  std::unique_ptr<ModelCluster> made(new ModelCluster(address));
  LODESTONE_RETURN_IF_ERROR(made->Connect(address, options));
  LODESTONE_RETURN_IF_ERROR(Annotate(made->FindTables(), made->name_));
  LODESTONE_RETURN_IF_ERROR(Annotate(made->PullDense(options.follow), made->name_));
  return made;
}

absl::Status ModelCluster::Connect(const std::string& address, const Options& options) {
  LODESTONE_ASSIGN_OR_RETURN(const ClusterAddress cluster, FindCluster(address, options.timeout_ms));
  v1::Config config;
  config.mutable_cluster()->set_name(cluster.name);
  config.mutable_coordinator()->set_address(cluster.coordinator);
  config.mutable_coordinator()->set_join_timeout_ms(static_cast<uint32_t>(options.timeout_ms));
  config.mutable_worker()->set_retry_timeout_ms(static_cast<uint32_t>(options.pull_timeout_ms));
  *config.mutable_security() = UsedSecurity();
  LODESTONE_ASSIGN_OR_RETURN(client_, worker::ClusterReader::Observe(config));
  return absl::OkStatus();
}

absl::Status ModelCluster::FindTables() {
  // Every model has this table, and its specification has the description (worker/model/model_description.h).
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<v1::TableSpec> described,
                             client_->DescribeTables({worker::kDescribedTable}));
  if (described.empty() || !described[0].has_model()) {
    return absl::FailedPreconditionError(absl::StrCat("it holds no described model",
                                                      described.empty() ? " yet: no worker has made its tables" : "",
                                                      "; train one, and ask again"));
  }
  LODESTONE_RETURN_IF_ERROR(worker::CheckDescription(described[0].model()));
  description_ = std::make_shared<const v1::ModelDescription>(described[0].model());
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<Predictor> predictor, Predictor::Create(description_));
  const std::vector<v1::TableSpec>& wanted = predictor->model().tables();
  dense_tables_ = predictor->model().dense_table_count();
  groups_ = predictor->model().plan().groups;
  std::vector<std::string> names;
  for (const v1::TableSpec& table : wanted) names.push_back(table.name());
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<v1::TableSpec> found, client_->DescribeTables(names));
  std::vector<v1::TableSpec> specs;
  for (const v1::TableSpec& table : wanted) {
    const auto spec =
        std::find_if(found.begin(), found.end(), [&](const v1::TableSpec& one) { return one.name() == table.name(); });
    if (spec == found.end() || !IsOfShape(*spec, table)) {
      return absl::FailedPreconditionError(absl::StrCat("table `", table.name(), "`, which the model needs, is ",
                                                        spec == found.end() ? "not there" : "of another shape"));
    }
    specs.push_back(*spec);
  }
  // They exist, so that nothing is made; this gives their ids and blocks.
  LODESTONE_ASSIGN_OR_RETURN(tables_, client_->EnsureTables(specs));
  return absl::OkStatus();
}

absl::Status ModelCluster::PullDense(bool follow) {
  DenseTables values(dense_tables_);
  std::vector<worker::DensePull> pulls;
  std::vector<const worker::TableHandle*> handles;
  for (size_t t = 0; t < dense_tables_; ++t) {
    values[t].resize(tables_[t].layout.elements);
    pulls.push_back({&tables_[t], values[t].data()});
    handles.push_back(&tables_[t]);
  }
  LODESTONE_ASSIGN_OR_RETURN(const worker::ShardVersions versions, client_->PullNow(std::move(pulls), {}));
  Note(versions);
  dense_ = std::make_unique<DenseFollower>(handles, std::move(values));
  if (!follow) return absl::OkStatus();
  return client_
      ->Subscribe(handles, {.on_anchor = [this](ShardId shard) { dense_->OnAnchor(shard); },
                            .on_block = [this](const worker::BlockUpdate& update) { dense_->OnBlock(update); },
                            .on_shard =
                                [this](ShardId shard, Version version) {
                                  const bool replaced = dense_->OnShard(shard);  // By an anchor.
                                  MutexLock lock(&mu_);
                                  if (shard >= versions_.size()) return;
                                  versions_[shard] = replaced ? version : std::max(versions_[shard], version);
                                }})
      .status();
}

uint64_t ModelCluster::Note(const worker::ShardVersions& versions) {
  MutexLock lock(&mu_);
  versions_.resize(std::max(versions_.size(), versions.size()), 0);
  uint64_t sum = 0;
  for (size_t shard = 0; shard < versions_.size(); ++shard) {
    if (shard < versions.size()) versions_[shard] = std::max(versions_[shard], versions[shard]);
    sum += versions_[shard];
  }
  return sum;
}

absl::Status ModelCluster::Read(const worker::KeyedBatch& batch, BatchParameters* parameters) {
  LODESTONE_RETURN_IF_ERROR(client_->Health());
  parameters->rows.resize(tables_.size() - dense_tables_);
  worker::ShardVersions versions;
  if (!parameters->rows.empty() && batch.has_keys()) {
    std::vector<worker::RowPull> pulls;
    for (size_t t = dense_tables_; t < tables_.size(); ++t) {
      const std::vector<Key>& keys = batch.KeysOf(groups_.OfTable(t - dense_tables_));
      std::vector<float>& rows = parameters->rows[t - dense_tables_];
      rows.resize(keys.size() * tables_[t].dim);
      pulls.push_back({&tables_[t], keys, rows.data()});
    }
    LODESTONE_ASSIGN_OR_RETURN(versions, client_->PullNow({}, std::move(pulls)));
  }
  parameters->version = Note(versions);
  parameters->dense = dense_->Newest();
  parameters->pointers.clear();
  for (const std::vector<float>& table : *parameters->dense) parameters->pointers.push_back(table.data());
  for (const std::vector<float>& rows : parameters->rows) parameters->pointers.push_back(rows.data());
  return absl::OkStatus();
}

}  // namespace lodestone::psctl
