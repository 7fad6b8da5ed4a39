// The authenticated peer of one call or stream. Re-checks each request against the current identities.
//
// Thread-safe. The Access must outlive it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/security/incoming_call.h"
#include "proto/parameter_server.pb.h"
#include "server/auth/access.h"

namespace lodestone::server {

class Caller {
 public:
  Caller(Access* access, IncomingCall call, Shown shown, GrantRef grant, uint64_t generation)
      : access_(access),
        call_(std::move(call)),
        shown_(std::move(shown)),
        opened_with_(std::move(grant)),
        generation_(generation),
        grant_(opened_with_) {}

  // The current grant; UNAVAILABLE if the identity was removed.
  absl::StatusOr<GrantRef> grant();
  // The grant at the beginning of the call or stream.
  const GrantRef& opened_with() const { return opened_with_; }

  // Checks a call on a stream, whose payload counts towards the quotas. OK: the ms for which nothing more is to be read
  // from the stream. UNAVAILABLE, PERMISSION_DENIED, RESOURCE_EXHAUSTED.
  absl::StatusOr<int64_t> Check(const v1::Call& call, size_t payload_bytes);

  // The same for unary calls; the answer to a push is to be held for that long.
  absl::StatusOr<int64_t> CheckPush(const v1::PushRequest& push, size_t payload_bytes);
  absl::Status CheckPull(const v1::PullRequest& pull);
  absl::StatusOr<int64_t> CheckPushPull(const v1::PushPullRequest& request, size_t payload_bytes);
  absl::Status CheckSubscribe(const v1::SubscribeRequest& request);
  absl::Status CheckEnsureTables(const v1::EnsureTablesRequest& request);
  // Whether it may give the tables of a checked request other settings.
  bool MayChangeTables(const v1::EnsureTablesRequest& request);

  // PERMISSION_DENIED for a role below `least`, naming `what` the caller wants of `method`.
  absl::Status CheckRole(v1::Identity::Role least, const char* method, const char* what);
  // Writes a call of `method`, which only an admin may make, to the audit log.
  void NoteAdmitted(const char* method);

 private:
  // The current grant, as grant(), for a call of `method`: one without a grant is counted as denied.
  absl::StatusOr<GrantRef> GrantFor(const char* method);
  // Counts an admitted or denied call of `method`, and returns `status`.
  absl::Status Note(const char* method, const GrantRef& grant, absl::Status status);

  Access* const access_;
  const IncomingCall call_;
  const Shown shown_;
  const GrantRef opened_with_;

  Mutex mu_;
  uint64_t generation_ ABSL_GUARDED_BY(mu_);  // Of grant_.
  absl::StatusOr<GrantRef> grant_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lodestone::server
