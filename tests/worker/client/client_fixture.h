// A client of a cluster in one process, with a dense table "d" and a table of rows "r".
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/worker/rpc/fake_cluster.h"
#include "worker/client/client.h"

namespace lodestone::worker {

inline v1::TableSpec DenseSpec(const std::string& name, uint64_t elements) {
  v1::TableSpec spec;
  spec.set_name(name);
  spec.mutable_dense()->add_dims(elements);
  return spec;
}

inline v1::TableSpec RowsSpec(const std::string& name, uint32_t dim) {
  v1::TableSpec spec;
  spec.set_name(name);
  spec.mutable_embedding()->set_dim(dim);
  return spec;
}

inline bool Contains(const absl::Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
}

class ClientFixture : public ::testing::Test {
 protected:
  ClientFixture(uint32_t servers, uint32_t shards, uint64_t elements, uint32_t dim)
      : cluster_(servers, shards), elements_(elements), dim_(dim) {}
  // What a test's own fixture has may be on its way as a gradient.
  void TearDown() override { client_.reset(); }

  void Connect(const v1::Config& config) {
    auto client = Client::Connect(config);
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    auto tables = client_->EnsureTables({DenseSpec("d", elements_), RowsSpec("r", dim_)});
    ASSERT_TRUE(tables.ok()) << tables.status();
    tables_ = *std::move(tables);
  }
  void Connect() { Connect(cluster_.config()); }

  // Lets the next heartbeat go out now.
  void HurryHeartbeat() {
    v1::WorkerProgress progress;
    phase_ = phase_ == v1::PHASE_TRAINING ? v1::PHASE_LOADING : v1::PHASE_TRAINING;
    progress.set_phase(phase_);
    client_->ReportProgress(progress);
  }

  FakeCluster cluster_;
  uint64_t elements_;  // Of the dense table that Connect makes.
  const uint32_t dim_;
  std::vector<TableHandle> tables_;
  v1::Phase phase_ = v1::PHASE_JOINED;
  std::unique_ptr<Client> client_;
};

}  // namespace lodestone::worker
