// The parameters of the model that a running cluster trains, or has trained.
//
// Reads as an observer: takes no worker's place and changes nothing. Rows are pulled for each batch, in one exchange
// with each ps. The dense tables are pulled once; with Options::follow broadcasts keep them up to date.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/types.h"
#include "proto/model.pb.h"
#include "tools/psctl/model/dense_follower.h"
#include "tools/psctl/model/parameter_source.h"
#include "worker/client/cluster_reader.h"

namespace lodestone::psctl {

class ModelCluster final : public ParameterSource {
 public:
  struct Options {
    bool follow = false;
    int timeout_ms = 10'000;       // For the cluster to be found.
    int pull_timeout_ms = 60'000;  // For a pull of rows, while servers are away.
  };
  // Of the cluster of the ps at `address` (host:port). FAILED_PRECONDITION, saying what is missing, if it has no
  // described model yet; errors of a ps that cannot be reached are admin_client.h's.
  static absl::StatusOr<std::unique_ptr<ModelCluster>> Open(const std::string& address, const Options& options);

  const std::shared_ptr<const v1::ModelDescription>& description() const override { return description_; }
  const std::string& name() const override { return name_; }
  absl::Status Read(const worker::KeyedBatch& batch, BatchParameters* parameters) override;
  absl::Status Health() const override { return client_->Health(); }

 private:
  explicit ModelCluster(const std::string& address);
  absl::Status Connect(const std::string& address, const Options& options);
  absl::Status FindTables();
  absl::Status PullDense(bool follow);
  // Notes versions of shards, and returns the sum of the newest.
  uint64_t Note(const worker::ShardVersions& versions);

  // Constant after Open.
  const std::string name_;
  std::shared_ptr<const v1::ModelDescription> description_;
  std::vector<worker::TableHandle> tables_;  // In the order of Model::tables().
  size_t dense_tables_ = 0;                  // The first of them.
  worker::FieldGroups groups_;
  std::unique_ptr<DenseFollower> dense_;  // Synchronises itself.

  Mutex mu_;
  worker::ShardVersions versions_ ABSL_GUARDED_BY(mu_);

  std::unique_ptr<worker::ClusterReader> client_;  // Last: its callbacks use the above. Synchronises itself.
};

}  // namespace lodestone::psctl
