// The coordinator's address: the configured one, or, with coordinator.etcd, at the ps that etcd says was elected.
//
// Thread-safe. Address may wait for etcd; Stop ends that, also from another thread.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/rpc/etcd_client.h"
#include "proto/config.pb.h"

namespace lodestone {

class CoordinatorFinder {
 public:
  // Uses coordinator.etcd if there is any, with coordinator.etcd_tls, otherwise coordinator.address; and cluster.name.
  explicit CoordinatorFinder(const v1::Config& config);

  // host:port. Cached until Missed. UNAVAILABLE if no ps is elected at the moment, as EtcdClient::Get, or as
  // EtcdCredentials.
  absl::StatusOr<std::string> Address();

  // The coordinator is not at `address`, or cannot be reached there: it is looked for again. Does nothing if something
  // else was found meanwhile.
  void Missed(const std::string& address);

  // Whether the coordinator is always at the same address.
  bool is_fixed() const { return etcd_ == nullptr && usable_.ok(); }

  // An Address under way, and later ones that would have to ask, end with CANCELLED.
  void Stop();

 private:
  // Constant after construction.
  const std::string key_;
  absl::Status usable_;               // Why etcd cannot be asked; OK: it can.
  std::unique_ptr<EtcdClient> etcd_;  // Null: the address is fixed. Synchronises itself.

  Mutex mu_;
  std::string address_ ABSL_GUARDED_BY(mu_);  // Empty: not known.
};

}  // namespace lodestone
