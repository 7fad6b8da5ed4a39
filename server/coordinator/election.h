// The election, by etcd, of the ps that serves the coordinator, and the coordinator's state in etcd.
//
// The key EtcdCoordinatorKey holds the address of the leader. It is bound to a lease that the leader renews, so that it
// vanishes with it; then the first ps that creates it again is elected. The term of an election is the etcd revision
// that created the key. The state is written only by a transaction that holds while the key is of the writer's term and
// the state is what the writer last read or wrote: a leader that was deposed and does not know it yet can change
// nothing.
//
// Whether the lease lasts is counted here, from when the last renewal that was answered was sent: it never ends later
// here than in etcd.
//
// Where the leader is found to be dead before its lease ends (NoteGone), the lease is revoked: so the key goes too, and
// should that process live after all, it learns of it when it renews.
//
// Thread-safe. A thread of its own runs for election, renews the lease and makes the callbacks.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/rpc/etcd_client.h"
#include "proto/admin.pb.h"
#include "proto/coordinator_state.pb.h"

namespace lodestone::server {

class Election {
 public:
  struct Options {
    std::string cluster;            // cluster.name.
    std::vector<std::string> etcd;  // coordinator.etcd.
    // Rounded up to seconds, which etcd counts in, and to etcd's own least (one and a half of its election timeout).
    uint32_t lease_ms = 10'000;
    const TimeSource* time = nullptr;           // Must outlive this.
    CredentialsRef etcd_credentials = nullptr;  // EtcdCredentials.
  };
  struct Events {
    // This ps is elected, in `term`: it serves the coordinator from the state that its predecessor saved (nullopt:
    // none ever did). An error gives the place up.
    std::function<absl::Status(int64_t term, const std::optional<v1::CoordinatorState>& state)> on_elected;
    // It is not any more: the next may serve already. Follows each on_elected that returned OK, but for Stop.
    std::function<void(int64_t term, const absl::Status& reason)> on_deposed;
    // Another ps is elected, with this lease of etcd's, and serves at `address`. Called with each look at etcd. May be
    // null.
    std::function<void(const std::string& address, int64_t lease)> on_other_elected = nullptr;
  };
  Election(Options options, Events events);
  // Begins to run, for a ps that others reach at `address`. Call once.
  void Start(std::string address);
  // Stops if Stop was not called.
  ~Election();

  // Whether this ps is still elected in `term`. What the coordinator answers counts if this is so after it was asked.
  bool Leads(int64_t term) const;

  // Puts the state where the next leader finds it. FAILED_PRECONDITION: this ps is not elected in `term` any
  // more. ABORTED: etcd says so; then on_deposed follows. RESOURCE_EXHAUSTED: it is longer than etcd takes. Otherwise,
  // as UNAVAILABLE, it is open whether it was done; a later Save replaces it. One at a time in a term.
  absl::Status Save(int64_t term, const v1::CoordinatorState& state);

  // The address of the leader, as far as is known; "" if there is none.
  std::string leader() const;
  // The process that was elected with `lease` is dead: the lease is ended, if it still leads, and another is elected.
  void NoteGone(int64_t lease);
  // What keeps this ps from etcd, or from the election; OK: nothing. FillStatus adds it to the waits.
  absl::Status health() const;
  void FillStatus(v1::StatusResponse* status) const;

  // Runs no more. If this ps is elected it gives its place up, so that another is elected at once.
  void Stop();

 private:
  void Run();
  // Looks for the leader, and runs for election if there is none. Returns after a term, or with what kept it from
  // finding out.
  absl::Status RunOnce();
  absl::Status Campaign();
  // Whether who is elected is dead, as far as is known here. `is_start`: this is the first look at etcd.
  bool IsGone(const EtcdClient::Value& elected, bool is_start);
  // The term; 0 if another was first.
  absl::StatusOr<int64_t> CreateKey(int64_t lease);
  // From the key's creation to the end of the term.
  absl::Status Serve(int64_t term, const EtcdClient::Lease& lease, int64_t lease_end_ms);
  absl::StatusOr<std::optional<v1::CoordinatorState>> LoadState();
  // Renews the lease until the term ends; says why it does.
  absl::Status KeepLease(const EtcdClient::Lease& lease);
  // One renewal. OK: the term goes on, whether it was answered or not.
  absl::Status Renew(int64_t lease);
  // As its name in EtcdClient; that etcd cannot be reached does not matter.
  void Revoke(int64_t lease);
  // Waits until there is something to do; false if Stop was called.
  bool Pause(int64_t ms);
  void SetLeader(const std::string& address);
  void NoteHealth(const absl::Status& status);
  bool LeadsLocked(int64_t term) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after construction.
  const Options options_;
  const Events events_;
  const std::string coordinator_key_;
  const std::string state_key_;
  std::string address_;  // Constant after Start.

  bool looked_ = false;  // Owned by the thread: at etcd.

  // Synchronise themselves. Renewals have connections of their own, so that they wait for nothing.
  EtcdClient etcd_;
  EtcdClient renewals_;

  mutable Mutex mu_;
  CondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  int64_t term_ ABSL_GUARDED_BY(mu_) = 0;            // 0: not elected.
  int64_t lease_end_ms_ ABSL_GUARDED_BY(mu_) = 0;    // On Options::time.
  absl::Status deposed_ ABSL_GUARDED_BY(mu_);        // Why the term has ended; OK: it has not.
  int64_t state_revision_ ABSL_GUARDED_BY(mu_) = 0;  // Of the state that was last read or written.
  bool state_open_ ABSL_GUARDED_BY(mu_) = false;     // A Save of this term has failed and may have been done.
  std::string leader_ ABSL_GUARDED_BY(mu_);
  int64_t gone_lease_ ABSL_GUARDED_BY(mu_) = 0;  // Of NoteGone; 0: none.
  bool hurried_ ABSL_GUARDED_BY(mu_) = false;    // NoteGone was called since the last look at etcd.
  absl::Status health_ ABSL_GUARDED_BY(mu_);
  int64_t ill_since_ms_ ABSL_GUARDED_BY(mu_) = 0;  // Since when health_ is not OK.

  std::thread thread_;
};

}  // namespace lodestone::server
