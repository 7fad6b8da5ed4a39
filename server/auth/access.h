// Who calls this ps, and whether he may: where security.identities is set, every call goes through here.
//
// The role is judged at the door (Admit), before a service sees a call or any of its messages is read; what depends on
// more than the method, a push's tables say, is judged by the service, through a Caller. Identities may change at any
// time: calls go by the newest, and streams whose caller has other rights than when they were opened are ended.
//
// Thread-safe. Must outlive the gRPC server and its streams, and the callers.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/base/timer.h"
#include "common/security/incoming_call.h"
#include "proto/admin.pb.h"
#include "server/auth/audit_log.h"
#include "server/auth/grant.h"
#include "server/auth/identities.h"
#include "server/auth/revocable.h"

namespace lodestone::server {

class Caller;

// What somebody shows to say who he is.
struct Shown {
  std::optional<Digest> token;
  std::vector<std::string> certificate_names;
};

class Access {
 public:
  // All must outlive this; `audit` may be null.
  struct Surroundings {
    const TableInfo* tables = nullptr;
    const TimeSource* time = nullptr;
    Audit* audit = nullptr;
    Timer* timer = nullptr;
  };
  Access(std::shared_ptr<const Identities> identities, Surroundings surroundings);

  // The door: OK if the caller is known and his role lets him call the method. UNAUTHENTICATED, PERMISSION_DENIED.
  absl::Status Admit(const IncomingCall& call);

  // Who makes a call that a service has got. UNAUTHENTICATED.
  absl::StatusOr<std::shared_ptr<Caller>> Identify(IncomingCall call);
  // Ends `stream` once its caller has not the rights any more that he was identified with.
  void Watch(const std::shared_ptr<Caller>& caller, std::weak_ptr<Revocable> stream);

  // OK if who shows this on the HTTP port may read there.
  absl::Status CheckHttp(const IncomingCall& request);

  // From now on these count.
  void Replace(std::shared_ptr<const Identities> identities);
  // Ends the streams that are to end, and cuts off those that were to and did not.
  void CheckStreams();

  // A token with which this process, and nobody else, may do everything here.
  const std::string& own_token() const { return own_token_; }
  Timer* timer() const { return surroundings_.timer; }

  // Who makes a call; empty: nobody who is known.
  std::string NameOf(const IncomingCall& call) const;

  // Has a call of an admin in the audit log.
  void NoteAdmitted(const Grant& grant, const IncomingCall& call);
  // Counts a call that is denied to `grant` (null: somebody unknown), and has it in the audit log.
  void NoteDenied(const Grant* grant, const IncomingCall& call, const absl::Status& why);
  void FillStatus(v1::StatusResponse* status) const;

 private:
  friend class Caller;
  struct Watched {
    std::weak_ptr<Revocable> stream;
    std::shared_ptr<Caller> caller;
    bool revoked = false;
  };

  // What the call shows; UNAUTHENTICATED if that contradicts itself.
  static absl::StatusOr<Shown> ShownBy(const IncomingCall& call);
  // What he may do who shows this. UNAUTHENTICATED, saying what is wrong with it.
  absl::StatusOr<GrantRef> Resolve(const Shown& shown) const;
  absl::StatusOr<GrantRef> ResolveCall(const IncomingCall& call) const;
  uint64_t generation() const { return generation_.load(std::memory_order_acquire); }

  // Constant after construction.
  const Surroundings surroundings_;
  const std::string own_token_;
  const Digest own_digest_;
  const GrantRef own_grant_;
  std::atomic<uint64_t> generation_{1};  // Of the identities.

  mutable Mutex mu_;
  std::shared_ptr<const Identities> identities_ ABSL_GUARDED_BY(mu_);
  std::vector<GrantRef> grants_ ABSL_GUARDED_BY(mu_);  // Beside identities_->all().
  std::vector<Watched> watched_ ABSL_GUARDED_BY(mu_);
  uint64_t unknown_denied_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace lodestone::server
