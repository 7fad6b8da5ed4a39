// The connection to the coordinator; after a failover the next call uses its new address.
//
// Thread-safe. A connection may be used on when there is a newer one.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/rpc/coordinator_finder.h"
#include "grpcpp/channel.h"
#include "proto/config.pb.h"
#include "proto/coordinator.grpc.pb.h"

namespace lodestone {

class CoordinatorChannel {
 public:
  // Makes the channel to a coordinator at `address`.
  using Connect = std::function<std::shared_ptr<grpc::Channel>(const std::string& address)>;
  struct Connection {
    std::string address;
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<v1::Coordinator::Stub> stub;
  };
  using ConnectionPtr = std::shared_ptr<const Connection>;

  CoordinatorChannel(const v1::Config& config, Connect connect);

  // The connection to use now. May have to ask etcd, which takes a while; if etcd cannot say, it is the one before. An
  // error if there was none.
  absl::StatusOr<ConnectionPtr> Get();
  // What Get returned last; null if nothing.
  ConnectionPtr Last() const;

  // FromCall of what a call on `connection` ended with. If it could mean that the coordinator is elsewhere, it is
  // looked for before the next call.
  absl::Status Note(const Connection& connection, const grpc::Status& status);

  // Whether the coordinator is always at the same address.
  bool is_fixed() const { return finder_.is_fixed(); }
  // Ends a Get in progress, and keeps later ones from asking etcd.
  void Stop() { finder_.Stop(); }

 private:
  const Connect connect_;
  CoordinatorFinder finder_;  // Synchronises itself.

  mutable Mutex mu_;
  ConnectionPtr last_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lodestone
