// A client of etcd, version 3 of its API: what the election of a coordinator needs of it.
//
// Endpoints are members of one etcd cluster. Each call goes to the one that answered last; if that cannot be reached or
// does not answer in time, to the others in turn, each once. Errors name the endpoints that were tried. Connections are
// plain, or TLS by the credentials that are given.
//
// Thread-safe. Calls block. Stop ends them, also from another thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "proto/config.pb.h"
#include "proto/etcd.grpc.pb.h"

namespace lodestone {

class Credentials;
using CredentialsRef = std::shared_ptr<const Credentials>;

class EtcdClient {
 public:
  // `timeout_ms` is how long an endpoint has for its answer. `credentials`: see EtcdCredentials. REQUIRES: there is an
  // endpoint.
  EtcdClient(std::vector<std::string> endpoints, int64_t timeout_ms, CredentialsRef credentials = nullptr);

  // What is under a key. Revisions count the changes of the whole store.
  struct Value {
    std::string bytes;
    int64_t created = 0;   // The revision that created the key.
    int64_t modified = 0;  // The revision that last wrote it.
    int64_t lease = 0;     // 0: the key goes with none.
  };
  // As of now: not of a member that lags behind. nullopt: there is no such key.
  absl::StatusOr<std::optional<Value>> Get(const std::string& key);

  // That a key was created, or last written, at a revision; at 0: that there is none.
  struct Condition {
    enum class What { kCreated, kModified };
    std::string key;
    What what = What::kCreated;
    int64_t revision = 0;
  };
  struct PutOutcome {
    bool done = false;
    // If done, of this write.
    int64_t revision = 0;
    // If not, what is under the conditions' keys, in their order.
    std::vector<std::optional<Value>> found;
    // An attempt before the one that was answered may have been done as well.
    bool repeated = false;
  };
  // Writes `value` under `key`, to go with `lease` (0: with none), if all conditions hold. An error leaves open whether
  // it was done, or yet will be.
  absl::StatusOr<PutOutcome> PutIf(const std::vector<Condition>& conditions, const std::string& key,
                                   const std::string& value, int64_t lease);

  struct Lease {
    int64_t id = 0;
    int64_t seconds = 0;  // That it lasts: maybe more than were asked for.
  };
  absl::StatusOr<Lease> Grant(int64_t seconds);
  // The seconds that it lasts from now on. NOT_FOUND if it has ended.
  absl::StatusOr<int64_t> KeepAlive(int64_t lease);
  // Ends it, and with it its keys. NOT_FOUND if it has ended.
  absl::Status Revoke(int64_t lease);

  // Calls under way, and later ones, end with CANCELLED.
  void Stop();

 private:
  struct Stubs {
    Stubs(const std::string& endpoint, const CredentialsRef& credentials);
    const std::shared_ptr<grpc::Channel> channel;
    const std::unique_ptr<etcdserverpb::KV::Stub> kv;
    const std::unique_ptr<etcdserverpb::Lease::Stub> lease;
  };
  using Attempt = std::function<grpc::Status(Stubs* stubs, grpc::ClientContext* context)>;

  // Makes `attempt` at one endpoint after another until one answers. `attempts` (may be null) counts them.
  absl::Status Call(const Attempt& attempt, int* attempts = nullptr);
  // `attempt` at the endpoint with this index.
  absl::Status CallOne(size_t endpoint, const Attempt& attempt);
  // Later calls use a new connection to this endpoint: to one that is dead without a word, a connection would seem to
  // stand.
  void Forget(size_t endpoint, const Stubs* stubs);

  // Constant.
  const std::vector<std::string> endpoints_;
  const int64_t timeout_ms_;
  const CredentialsRef credentials_;  // Null: plain connections.

  Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  size_t current_ ABSL_GUARDED_BY(mu_) = 0;                         // That is asked first.
  std::vector<std::shared_ptr<Stubs>> stubs_ ABSL_GUARDED_BY(mu_);  // By endpoint; null: not connected.
  std::set<grpc::ClientContext*> under_way_ ABSL_GUARDED_BY(mu_);
};

// Of coordinator.etcd_tls; null: connections are plain. Fails as Credentials::Make.
absl::StatusOr<CredentialsRef> EtcdCredentials(const v1::CoordinatorConfig& coordinator);

// The keys of a cluster: who serves its coordinator, and the coordinator's state.
std::string EtcdCoordinatorKey(absl::string_view cluster);
std::string EtcdStateKey(absl::string_view cluster);

}  // namespace lodestone
