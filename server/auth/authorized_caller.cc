#include "server/auth/authorized_caller.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/wire/part.h"
#include "common/wire/shard_map.h"

namespace lodestone::server {
namespace {

using v1::Identity;
using Parts = google::protobuf::RepeatedPtrField<v1::Part>;

constexpr char kPush[] = "/lodestone.v1.ParameterServer/Push";
constexpr char kPull[] = "/lodestone.v1.ParameterServer/Pull";
constexpr char kPushPull[] = "/lodestone.v1.ParameterServer/PushPull";
constexpr char kSubscribe[] = "/lodestone.v1.ParameterServer/Subscribe";
constexpr char kEnsureTables[] = "/lodestone.v1.ParameterServer/EnsureTables";

// Calls `check` once for each table of `parts`, unless all are open to `grant`.
template <typename Check>
absl::Status CheckTables(const Grant& grant, const Parts& parts, Check check) {
  if (!grant.limits_tables()) return absl::OkStatus();
  absl::flat_hash_set<TableId> checked;
  for (const v1::Part& part : parts) {
    if (checked.insert(part.table()).second) LODESTONE_RETURN_IF_ERROR(check(part.table()));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> JudgePush(const Grant& grant, const Parts& parts, size_t payload_bytes, const char* method) {
  LODESTONE_RETURN_IF_ERROR(grant.CheckRole(Identity::WORKER, method));
  LODESTONE_RETURN_IF_ERROR(CheckTables(grant, parts, [&](TableId table) { return grant.CheckWrite(table); }));
  return grant.TakePush(payload_bytes, HasRows(parts));
}

absl::Status JudgePull(const Grant& grant, const Parts& parts, const char* method) {
  LODESTONE_RETURN_IF_ERROR(grant.CheckRole(Identity::OBSERVER, method));
  return CheckTables(grant, parts, [&](TableId table) { return grant.CheckRead(table); });
}

// `known`: the name of the table that there is with its id.
absl::Status JudgeTable(const Grant& grant, const std::string& name, const absl::StatusOr<std::string>& known) {
  const bool exists = known.ok() && *known == name;
  const absl::Status may_make = grant.CheckWrite(absl::string_view(name));
  if (may_make.ok()) return exists ? absl::OkStatus() : grant.CheckRoom();
  // A reader names its tables too, and waits until another worker has made them.
  if (!grant.CheckRead(absl::string_view(name)).ok()) return may_make;
  if (exists) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("table `", name, "` does not exist yet, and ", grant.Described(),
                                             " may not create it; start a worker that may"));
}

}  // namespace

absl::StatusOr<GrantRef> Caller::grant() {
  const uint64_t generation = access_->generation();
  MutexLock lock(&mu_);
  if (generation_ == generation) return grant_;
  generation_ = generation;
  grant_ = access_->Resolve(shown_);
  if (grant_.ok()) return grant_;
  // Not UNAUTHENTICATED: a caller with a new token opens another stream with it, and goes on.
  grant_ = absl::UnavailableError(absl::StrCat("the identity of this call or stream, ", opened_with_->Described(),
                                               ", is no longer valid: ", grant_.status().message()));
  return grant_;
}

absl::StatusOr<GrantRef> Caller::GrantFor(const char* method) {
  absl::StatusOr<GrantRef> grant = this->grant();
  if (grant.ok()) return grant;
  IncomingCall denied = call_;
  denied.method = method;
  access_->NoteDenied(nullptr, denied, grant.status());
  return grant;
}

absl::Status Caller::Note(const char* method, const GrantRef& grant, absl::Status status) {
  if (status.ok()) {
    grant->counts().calls.fetch_add(1, std::memory_order_relaxed);
  } else if (absl::IsPermissionDenied(status) || absl::IsUnauthenticated(status)) {
    IncomingCall denied = call_;
    denied.method = method;
    access_->NoteDenied(grant.get(), denied, status);
  }
  return status;
}

absl::StatusOr<int64_t> Caller::Check(const v1::Call& call, size_t payload_bytes) {
  switch (call.request_case()) {
    case v1::Call::kPush:
      return CheckPush(call.push(), payload_bytes);
    case v1::Call::kPull:
      LODESTONE_RETURN_IF_ERROR(CheckPull(call.pull()));
      return 0;
    case v1::Call::kPushPull:
      return CheckPushPull(call.push_pull(), payload_bytes);
    case v1::Call::kSubscribe:
      LODESTONE_RETURN_IF_ERROR(CheckSubscribe(call.subscribe()));
      return 0;
    case v1::Call::kEnsureTables:
      LODESTONE_RETURN_IF_ERROR(CheckEnsureTables(call.ensure_tables()));
      return 0;
    case v1::Call::REQUEST_NOT_SET:
      break;
  }
  return 0;  // The dispatcher refuses it.
}

absl::StatusOr<int64_t> Caller::CheckPush(const v1::PushRequest& push, size_t payload_bytes) {
  LODESTONE_ASSIGN_OR_RETURN(const GrantRef grant, GrantFor(kPush));
  const absl::StatusOr<int64_t> hold_ms = JudgePush(*grant, push.parts(), payload_bytes, kPush);
  LODESTONE_RETURN_IF_ERROR(Note(kPush, grant, hold_ms.status()));
  return hold_ms;
}

absl::Status Caller::CheckPull(const v1::PullRequest& pull) {
  LODESTONE_ASSIGN_OR_RETURN(const GrantRef grant, GrantFor(kPull));
  return Note(kPull, grant, JudgePull(*grant, pull.parts(), kPull));
}

absl::StatusOr<int64_t> Caller::CheckPushPull(const v1::PushPullRequest& request, size_t payload_bytes) {
  LODESTONE_ASSIGN_OR_RETURN(const GrantRef grant, GrantFor(kPushPull));
  const absl::Status pull = JudgePull(*grant, request.pull().parts(), kPushPull);
  const absl::StatusOr<int64_t> hold_ms =
      pull.ok() ? JudgePush(*grant, request.push().parts(), payload_bytes, kPushPull) : pull;
  LODESTONE_RETURN_IF_ERROR(Note(kPushPull, grant, hold_ms.status()));
  return hold_ms;
}

absl::Status Caller::CheckSubscribe(const v1::SubscribeRequest& request) {
  LODESTONE_ASSIGN_OR_RETURN(const GrantRef grant, GrantFor(kSubscribe));
  absl::Status status = grant->CheckRole(Identity::OBSERVER, kSubscribe);
  for (const auto& table : request.tables()) {
    if (status.ok()) status = grant->CheckRead(table.table());
  }
  return Note(kSubscribe, grant, std::move(status));
}

absl::Status Caller::CheckEnsureTables(const v1::EnsureTablesRequest& request) {
  LODESTONE_ASSIGN_OR_RETURN(const GrantRef grant, GrantFor(kEnsureTables));
  const bool describes = request.tables().empty() && request.worker_incarnation() == 0;
  absl::Status status = grant->CheckRole(describes ? Identity::OBSERVER : Identity::WORKER, kEnsureTables);
  for (const v1::TableSpec& table : request.tables()) {
    if (!status.ok()) break;
    status = JudgeTable(*grant, table.name(), access_->dependencies_.tables->name_of(TableIdOf(table.name())));
  }
  for (const std::string& name : request.describe()) {
    if (!status.ok() || grant->CheckWrite(absl::string_view(name)).ok()) continue;
    status = grant->CheckRead(absl::string_view(name));
  }
  return Note(kEnsureTables, grant, std::move(status));
}

bool Caller::MayChangeTables(const v1::EnsureTablesRequest& request) {
  const absl::StatusOr<GrantRef> grant = this->grant();
  if (!grant.ok()) return false;
  return std::all_of(request.tables().begin(), request.tables().end(), [&](const v1::TableSpec& table) {
    return (*grant)->CheckWrite(absl::string_view(table.name())).ok();
  });
}

void Caller::NoteAdmitted(const char* method) {
  const absl::StatusOr<GrantRef> grant = this->grant();
  IncomingCall admitted = call_;
  admitted.method = method;
  access_->NoteAdmitted(grant.ok() ? **grant : *opened_with_, admitted);
}

absl::Status Caller::CheckRole(Identity::Role least, const char* method, const char* what) {
  LODESTONE_ASSIGN_OR_RETURN(const GrantRef grant, GrantFor(method));
  return Note(method, grant, grant->CheckRole(least, what));
}

}  // namespace lodestone::server
