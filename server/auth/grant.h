// The rights, quotas and counters of one identity on this ps.
//
// Thread-safe. A grant belongs to one version of the file of identities; its counters carry over to the next.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/types.h"
#include "proto/admin.pb.h"
#include "proto/identities.pb.h"
#include "server/auth/quota.h"

namespace lodestone::server {

// The tables of this ps, as rights and quotas need them.
struct TableInfo {
  // The name of a table, or the error of calls for it: NOT_FOUND if no table has this id, UNAVAILABLE if this ps does
  // not know (yet).
  std::function<absl::StatusOr<std::string>(TableId)> name_of;
  // Rows and bytes of all tables on this ps.
  std::function<std::pair<uint64_t, uint64_t>()> totals;
};

class Grant {
 public:
  struct Counts {
    std::atomic<uint64_t> calls{0};
    std::atomic<uint64_t> denied{0};
    std::atomic<uint64_t> throttled{0};
    std::atomic<uint64_t> push_bytes{0};
  };

  // `tables` must outlive this. `before`: the previous version's grant of the same name, whose counts go on if it has
  // the same role; null: none.
  Grant(const v1::Identity& identity, const TableInfo* tables, const TimeSource* time, const Grant* before);

  const std::string& name() const { return identity_.name(); }
  v1::Identity::Role role() const { return identity_.role(); }
  // "`alice` (worker)".
  std::string Described() const;
  Counts& counts() const { return *counts_; }

  // PERMISSION_DENIED, naming the identity and `what`, for a role below `least`.
  absl::Status CheckRole(v1::Identity::Role least, absl::string_view what) const;

  // The right to push to a table or create it, or to read it. An unknown table gives TableInfo's error: it may be
  // created between this and the call.
  absl::Status CheckWrite(TableId table) const;
  absl::Status CheckWrite(absl::string_view table) const;
  absl::Status CheckRead(TableId table) const;
  absl::Status CheckRead(absl::string_view table) const;

  // False if the role alone gives all rights to all tables.
  bool limits_tables() const;

  // RESOURCE_EXHAUSTED if the tables are too large for the identity to create more.
  absl::Status CheckRoom() const { return CheckTotals(/*rows=*/false); }

  // Takes a push of `bytes` from the quotas; `rows`: it may create rows. As Quota::Take.
  absl::StatusOr<int64_t> TakePush(uint64_t bytes, bool rows) const;

  // True if role and tables equal those of `other`.
  bool SameRights(const Grant& other) const;
  void FillStatus(v1::IdentityStatus* status) const;

 private:
  enum Right : uint8_t { kWrite = 1, kRead = 2 };

  uint8_t RightsTo(absl::string_view table) const;
  absl::Status Check(TableId table, Right right) const;
  absl::Status Deny(Right right, absl::string_view table) const;
  absl::Status CheckTotals(bool rows) const;

  // Constant; synchronise themselves.
  const v1::Identity identity_;
  const TableInfo* const tables_;
  const std::shared_ptr<Counts> counts_;
  const std::shared_ptr<Quota> quota_;

  mutable Mutex mu_;
  mutable absl::flat_hash_map<TableId, uint8_t> rights_ ABSL_GUARDED_BY(mu_);  // Of tables checked before.
};

using GrantRef = std::shared_ptr<const Grant>;

}  // namespace lodestone::server
