#include "server/auth/access.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "server/auth/authorized_caller.h"
#include "server/auth/method_roles.h"

namespace lodestone::server {
namespace {

constexpr size_t kOwnTokenBytes = 32;

std::string DrawToken() {
  unsigned char bytes[kOwnTokenBytes];
  LODESTONE_CHECK(RAND_bytes(bytes, sizeof(bytes)) == 1);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(bytes), sizeof(bytes)));
}

v1::Identity OwnIdentity() {
  v1::Identity identity;
  identity.set_name("this ps");
  identity.set_role(v1::Identity::ADMIN);
  return identity;
}

}  // namespace

Access::Access(std::shared_ptr<const Identities> identities, Dependencies dependencies)
    : dependencies_(std::move(dependencies)),
      own_token_(DrawToken()),
      own_digest_(DigestOf(own_token_)),
      own_grant_(std::make_shared<Grant>(OwnIdentity(), dependencies_.tables, dependencies_.time, nullptr)) {
  Replace(std::move(identities));
}

void Access::Replace(std::shared_ptr<const Identities> identities) {
  MutexLock lock(&mu_);
  absl::flat_hash_map<std::string, GrantRef> before;
  for (const GrantRef& grant : grants_) before.emplace(grant->name(), grant);
  std::vector<GrantRef> grants;
  for (const v1::Identity& identity : identities->all()) {
    const auto known = before.find(identity.name());
    grants.push_back(std::make_shared<Grant>(identity, dependencies_.tables, dependencies_.time,
                                             known == before.end() ? nullptr : known->second.get()));
    if (known != before.end() && known->second->role() == identity.role()) before.erase(known);
  }
  for (const auto& [name, grant] : before) Remove(*grant);
  grants_ = std::move(grants);
  identities_ = std::move(identities);
  generation_.fetch_add(1, std::memory_order_acq_rel);
}

void Access::Remove(const Grant& grant) {
  v1::IdentityStatus counted;
  grant.FillStatus(&counted);
  v1::IdentityStatus& removed = removed_[grant.role()];
  removed.set_name("(removed)");
  removed.set_role(counted.role());
  removed.set_calls(removed.calls() + counted.calls());
  removed.set_denied(removed.denied() + counted.denied());
  removed.set_throttled(removed.throttled() + counted.throttled());
  removed.set_push_bytes(removed.push_bytes() + counted.push_bytes());
}

absl::StatusOr<Shown> Access::ShownBy(const IncomingCall& call) {
  Shown shown;
  shown.certificate_names = call.certificate_names;
  if (call.authorization.empty()) return shown;
  if (call.authorization.size() > 1) return absl::UnauthenticatedError("several tokens were shown; send one");
  const absl::string_view token = BearerToken(call.authorization.front());
  if (token.empty())
    return absl::UnauthenticatedError("the authorization metadata is no bearer token; send \"Bearer TOKEN\"");
  shown.token = DigestOf(token);
  return shown;
}

absl::StatusOr<GrantRef> Access::Resolve(const Shown& shown) const {
  MutexLock lock(&mu_);
  // A token decides alone: with a wrong one a certificate does not help.
  if (shown.token.has_value()) {
    if (CRYPTO_memcmp(shown.token->data(), own_digest_.data(), own_digest_.size()) == 0) return own_grant_;
    const int found = identities_->ByToken(*shown.token);
    if (found >= 0) return grants_[found];
    return absl::UnauthenticatedError("unknown token: no identity of this ps has it (security.identities)");
  }
  const int found = identities_->ByCertificate(shown.certificate_names);
  if (found >= 0) return grants_[found];
  if (shown.certificate_names.empty()) {
    return absl::UnauthenticatedError(
        "no token was shown (set security.token), and no certificate of an identity of this ps");
  }
  return absl::UnauthenticatedError(
      absl::StrCat("no token was shown (set security.token), and the names in the certificate, ",
                   absl::StrJoin(shown.certificate_names, ", "), ", are not those of one identity of this ps"));
}

absl::StatusOr<GrantRef> Access::ResolveCall(const IncomingCall& call) const {
  LODESTONE_ASSIGN_OR_RETURN(const Shown shown, ShownBy(call));
  return Resolve(shown);
}

absl::Status Access::Admit(const IncomingCall& call) {
  if (IsOpenToAll(call.method)) return absl::OkStatus();
  const absl::StatusOr<GrantRef> grant = ResolveCall(call);
  const MethodRole method = RoleFor(call.method);
  const absl::Status status = grant.ok() ? (*grant)->CheckRole(method.least, call.method) : grant.status();
  if (!status.ok()) {
    NoteDenied(grant.ok() ? grant->get() : nullptr, call, status);
    return status;
  }
  if (!method.counted_by_service) (*grant)->counts().calls.fetch_add(1, std::memory_order_relaxed);
  if (method.audited) NoteAdmitted(**grant, call);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Caller>> Access::Identify(IncomingCall call) {
  const uint64_t generation = this->generation();
  absl::StatusOr<Shown> shown = ShownBy(call);
  absl::StatusOr<GrantRef> grant = shown.ok() ? Resolve(*shown) : shown.status();
  if (!grant.ok()) {
    NoteDenied(nullptr, call, grant.status());
    return grant.status();
  }
  return std::make_shared<Caller>(this, std::move(call), *std::move(shown), *std::move(grant), generation);
}

void Access::Watch(const std::shared_ptr<Caller>& caller, std::weak_ptr<Revocable> stream) {
  MutexLock lock(&mu_);
  std::erase_if(watched_, [](const Watched& known) { return known.stream.expired(); });
  watched_.push_back({std::move(stream), caller});
}

void Access::CheckStreams() {
  std::vector<Watched> watched;
  {
    MutexLock lock(&mu_);
    watched.swap(watched_);
  }
  std::vector<Watched> left;
  for (Watched& known : watched) {
    const auto stream = known.stream.lock();
    if (stream == nullptr) continue;
    const absl::StatusOr<GrantRef> now = known.caller->grant();
    const Grant& before = *known.caller->opened_with();
    known.revoked |= !now.ok() || !(*now)->SameRights(before);
    // UNAVAILABLE, so that a caller with new rights or a new token connects again.
    if (known.revoked) {
      stream->Revoke(absl::UnavailableError(absl::StrCat("the rights of ", before.Described(),
                                                         " have changed since the stream was opened; open another")));
    }
    left.push_back(std::move(known));
  }
  MutexLock lock(&mu_);
  for (Watched& known : left) watched_.push_back(std::move(known));
}

absl::Status Access::CheckHttp(const IncomingCall& request) {
  const absl::StatusOr<GrantRef> grant = ResolveCall(request);
  const absl::Status status = grant.ok() ? (*grant)->CheckRole(v1::Identity::OBSERVER, request.method) : grant.status();
  if (status.ok()) {
    (*grant)->counts().calls.fetch_add(1, std::memory_order_relaxed);
  } else {
    NoteDenied(grant.ok() ? grant->get() : nullptr, request, status);
  }
  return status;
}

std::string Access::NameOf(const IncomingCall& call) const {
  const absl::StatusOr<GrantRef> grant = ResolveCall(call);
  return grant.ok() ? (*grant)->name() : "";
}

void Access::NoteAdmitted(const Grant& grant, const IncomingCall& call) {
  if (dependencies_.audit == nullptr) return;
  dependencies_.audit->Write({grant.name(), call.peer, call.agent, call.method, ""}, "admitted");
}

void Access::NoteDenied(const Grant* grant, const IncomingCall& call, const absl::Status& why) {
  if (grant != nullptr) {
    grant->counts().denied.fetch_add(1, std::memory_order_relaxed);
  } else {
    MutexLock lock(&mu_);
    ++unknown_denied_;
  }
  if (dependencies_.audit == nullptr) return;
  dependencies_.audit->WriteDenied(
      {grant == nullptr ? "" : grant->name(), call.peer, call.agent, call.method, std::string(why.message())});
}

void Access::FillStatus(v1::StatusResponse* status) const {
  MutexLock lock(&mu_);
  for (const GrantRef& grant : grants_) grant->FillStatus(status->add_identities());
  for (const auto& [role, removed] : removed_) *status->add_identities() = removed;
  if (unknown_denied_ == 0) return;
  v1::IdentityStatus* const unknown = status->add_identities();
  unknown->set_name("(unknown)");
  unknown->set_denied(unknown_denied_);
}

}  // namespace lodestone::server
