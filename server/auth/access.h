// Authentication and authorization of a ps: where security.identities is set, every call is checked here.
//
// Admit checks the role that a method needs, before its service sees the call or reads any of its messages; what
// depends on more than the method, for example the tables of a push, is checked by the service, through a Caller.
// Identities may change at any time: calls are judged by the newest, and streams whose caller's rights have changed
// since they were opened are ended.
//
// Thread-safe. Must outlive the gRPC server and its streams, and the callers.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
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

// The proof of identity that a call shows.
struct Shown {
  std::optional<Digest> token;
  std::vector<std::string> certificate_names;
};

class Access {
 public:
  // All must outlive this; `audit` may be null.
  struct Dependencies {
    const TableInfo* tables = nullptr;
    const TimeSource* time = nullptr;
    Audit* audit = nullptr;
    Timer* timer = nullptr;
  };
  Access(std::shared_ptr<const Identities> identities, Dependencies dependencies);

  // OK if the caller is an identity whose role may call the method; else UNAUTHENTICATED or PERMISSION_DENIED.
  absl::Status Admit(const IncomingCall& call);

  // The caller of a call that has reached its service, or UNAUTHENTICATED.
  absl::StatusOr<std::shared_ptr<Caller>> Identify(IncomingCall call);
  // Ends `stream` when the rights of its caller are no longer those that it was identified with.
  void Watch(const std::shared_ptr<Caller>& caller, std::weak_ptr<Revocable> stream);

  // OK if the client of this HTTP request may read the HTTP port; else as Admit.
  absl::Status CheckHttp(const IncomingCall& request);

  // Replaces the identities.
  void Replace(std::shared_ptr<const Identities> identities);
  // Ends the streams whose caller's rights have changed; resets those that were to end and did not.
  void CheckStreams();

  // The token of this process itself, which may do everything here.
  const std::string& own_token() const { return own_token_; }
  Timer* timer() const { return dependencies_.timer; }

  // The name of a call's identity; empty if it has none.
  std::string NameOf(const IncomingCall& call) const;

  // Writes a call of an admin to the audit log.
  void NoteAdmitted(const Grant& grant, const IncomingCall& call);
  // Counts a call that is denied to `grant` (null: no identity), and writes it to the audit log.
  void NoteDenied(const Grant* grant, const IncomingCall& call, const absl::Status& why);
  void FillStatus(v1::StatusResponse* status) const;

 private:
  friend class Caller;
  struct Watched {
    std::weak_ptr<Revocable> stream;
    std::shared_ptr<Caller> caller;
    bool revoked = false;
  };

  // The proof that a call shows; UNAUTHENTICATED if it is malformed or shows several.
  static absl::StatusOr<Shown> ShownBy(const IncomingCall& call);
  // The grant of the identity that this proves, or UNAUTHENTICATED with the reason.
  absl::StatusOr<GrantRef> Resolve(const Shown& shown) const;
  absl::StatusOr<GrantRef> ResolveCall(const IncomingCall& call) const;
  // Adds what a grant that goes has counted to removed_.
  void Remove(const Grant& grant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  uint64_t generation() const { return generation_.load(std::memory_order_acquire); }

  // Constant after construction.
  const Dependencies dependencies_;
  const std::string own_token_;
  const Digest own_digest_;
  const GrantRef own_grant_;
  std::atomic<uint64_t> generation_{1};  // Of the identities.

  mutable Mutex mu_;
  std::shared_ptr<const Identities> identities_ ABSL_GUARDED_BY(mu_);
  std::vector<GrantRef> grants_ ABSL_GUARDED_BY(mu_);  // Beside identities_->all().
  // What grants that are gone have counted, by role: what is summed over all of a role does not fall.
  std::map<v1::Identity::Role, v1::IdentityStatus> removed_ ABSL_GUARDED_BY(mu_);
  std::vector<Watched> watched_ ABSL_GUARDED_BY(mu_);
  uint64_t unknown_denied_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace lodestone::server
