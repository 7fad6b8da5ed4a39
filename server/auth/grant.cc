#include "server/auth/grant.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "server/auth/identities.h"

namespace lodestone::server {
namespace {

using v1::Identity;

// True if a quota, with its debt, carries over.
bool SameQuota(const Identity& a, const Identity& b) {
  return a.push_bytes_per_second_max() == b.push_bytes_per_second_max() &&
         a.pushes_per_second_max() == b.pushes_per_second_max();
}

bool SameNames(const google::protobuf::RepeatedPtrField<std::string>& a,
               const google::protobuf::RepeatedPtrField<std::string>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

std::string NameOf(Identity::Role role) { return absl::AsciiStrToLower(Identity::Role_Name(role)); }

}  // namespace

Grant::Grant(const Identity& identity, const TableInfo* tables, const TimeSource* time, const Grant* before)
    : identity_(identity),
      tables_(tables),
      counts_(before == nullptr || before->role() != identity.role() ? std::make_shared<Counts>() : before->counts_),
      quota_(before == nullptr || !SameQuota(identity, before->identity_) ? std::make_shared<Quota>(identity, time)
                                                                          : before->quota_) {}

std::string Grant::Described() const { return absl::StrCat("`", name(), "` (", NameOf(role()), ")"); }

absl::Status Grant::CheckRole(Identity::Role least, absl::string_view what) const {
  if (role() >= least) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(Described(), " may not call ", what, ", which needs the role ", NameOf(least)));
}

uint8_t Grant::RightsTo(absl::string_view table) const {
  if (role() == Identity::ADMIN) return kWrite | kRead;
  const bool listed_write = MatchesAny(identity_.tables_write(), table);
  uint8_t rights = 0;
  if (role() == Identity::WORKER && (identity_.tables_write().empty() || listed_write)) rights |= kWrite;
  const bool readable = identity_.tables_read().empty() || listed_write || MatchesAny(identity_.tables_read(), table);
  if (role() >= Identity::OBSERVER && readable) rights |= kRead;
  return rights;
}

absl::Status Grant::Deny(Right right, absl::string_view table) const {
  return absl::PermissionDeniedError(
      absl::StrCat(Described(), right == kWrite ? " may not push to table `" : " may not read table `", table, "`"));
}

bool Grant::limits_tables() const {
  if (role() == Identity::ADMIN) return false;
  return role() != Identity::WORKER || !identity_.tables_write().empty() || !identity_.tables_read().empty();
}

absl::Status Grant::Check(TableId table, Right right) const {
  if (!limits_tables()) return absl::OkStatus();
  {
    MutexLock lock(&mu_);
    const auto known = rights_.find(table);
    if (known != rights_.end() && (known->second & right) != 0) return absl::OkStatus();
  }
  LODESTONE_ASSIGN_OR_RETURN(const std::string name, tables_->name_of(table));
  const uint8_t rights = RightsTo(name);
  {
    MutexLock lock(&mu_);
    rights_.emplace(table, rights);
  }
  return (rights & right) != 0 ? absl::OkStatus() : Deny(right, name);
}

absl::Status Grant::CheckWrite(TableId table) const { return Check(table, kWrite); }
absl::Status Grant::CheckRead(TableId table) const { return Check(table, kRead); }
absl::Status Grant::CheckWrite(absl::string_view table) const {
  return (RightsTo(table) & kWrite) != 0 ? absl::OkStatus() : Deny(kWrite, table);
}
absl::Status Grant::CheckRead(absl::string_view table) const {
  return (RightsTo(table) & kRead) != 0 ? absl::OkStatus() : Deny(kRead, table);
}

absl::Status Grant::CheckTotals(bool rows) const {
  if (identity_.rows_max() == 0 && identity_.memory_max_bytes() == 0) return absl::OkStatus();
  const auto [rows_now, bytes_now] = tables_->totals();
  if (rows && identity_.rows_max() > 0 && rows_now >= identity_.rows_max()) {
    return absl::ResourceExhaustedError(absl::StrCat("the tables of this ps have ", rows_now, " rows, and ",
                                                     Described(), " may push rows up to its rows_max of ",
                                                     identity_.rows_max()));
  }
  if (identity_.memory_max_bytes() > 0 && bytes_now >= identity_.memory_max_bytes()) {
    return absl::ResourceExhaustedError(absl::StrCat("the tables of this ps take ", bytes_now, " bytes, and ",
                                                     Described(), " may push up to its memory_max_bytes of ",
                                                     identity_.memory_max_bytes()));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Grant::TakePush(uint64_t bytes, bool rows) const {
  const absl::Status room = CheckTotals(rows);
  const absl::StatusOr<int64_t> hold_ms = room.ok() ? quota_->Take(bytes) : room;
  if (!hold_ms.ok() || *hold_ms > 0) counts_->throttled.fetch_add(1, std::memory_order_relaxed);
  if (hold_ms.ok()) counts_->push_bytes.fetch_add(bytes, std::memory_order_relaxed);
  return hold_ms;
}

bool Grant::SameRights(const Grant& other) const {
  return name() == other.name() && role() == other.role() &&
         SameNames(identity_.tables_write(), other.identity_.tables_write()) &&
         SameNames(identity_.tables_read(), other.identity_.tables_read());
}

void Grant::FillStatus(v1::IdentityStatus* status) const {
  status->set_name(name());
  status->set_role(NameOf(role()));
  status->set_calls(counts_->calls.load());
  status->set_denied(counts_->denied.load());
  status->set_throttled(counts_->throttled.load());
  status->set_push_bytes(counts_->push_bytes.load());
}

}  // namespace lodestone::server
