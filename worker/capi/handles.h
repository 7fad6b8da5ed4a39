// The handles of the C interface.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "worker/capi/broadcast_copy.h"
#include "worker/capi/call.h"
#include "worker/capi/row_copy.h"
#include "worker/client/client.h"
#include "worker/client/cluster_reader.h"
#include "worker/client/table_handle.h"
#include "worker/client/types.h"

struct lodestone_table {
  lodestone::worker::TableHandle handle;
  std::string spec_json;
};

struct lodestone_client {
  lodestone::Mutex mu;
  // Of every opening one: what is in flight refers to them. Addresses stay.
  std::deque<lodestone_table> tables ABSL_GUARDED_BY(mu);

  // Last: its end cancels what is in flight, before the tables go.
  std::unique_ptr<lodestone::worker::ClusterReader> reader;
  lodestone::worker::Client* client = nullptr;  // `reader`, if it is a worker's; null of an observer.
};

struct lodestone_call {
  std::shared_ptr<lodestone::worker::Call> call;
};

// Of dense tables, or of rows.
struct lodestone_subscription {
  lodestone::worker::SubscriptionId id = 0;
  std::shared_ptr<lodestone::worker::BroadcastCopy> dense;
  std::shared_ptr<lodestone::worker::RowCopy> rows;

  lodestone::worker::FollowedShards& shards() const {
    return dense != nullptr ? static_cast<lodestone::worker::FollowedShards&>(*dense) : *rows;
  }
};
