// What one identity may do on this ps, and how much of it it has done.
//
// Thread-safe. A grant is of one reading of the file of identities; what is counted goes on from one to the next.
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

// What rights and quotas look at.
struct TableInfo {
  // The name of a table, or what calls that need it end with: NOT_FOUND if there is none with this id, UNAVAILABLE if
  // this ps does not know (yet).
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

  // `tables` must outlive this. `before`: what the reading before knew of the same name; null: nothing.
  Grant(const v1::Identity& identity, const TableInfo* tables, const TimeSource* time, const Grant* before);

  const std::string& name() const { return identity_.name(); }
  v1::Identity::Role role() const { return identity_.role(); }
  // "`alice` (worker)".
  std::string Described() const;
  Counts& counts() const { return *counts_; }

  // PERMISSION_DENIED, naming the identity and `what`, without a role that is at least `least`.
  absl::Status CheckRole(v1::Identity::Role least, absl::string_view what) const;

  // Whether a table may be pushed to or made, or read. Of one that is not known, what TableInfo says: it might be made
  // between this and the call.
  absl::Status CheckWrite(TableId table) const;
  absl::Status CheckWrite(absl::string_view table) const;
  absl::Status CheckRead(TableId table) const;
  absl::Status CheckRead(absl::string_view table) const;

  // RESOURCE_EXHAUSTED if the tables take too much for it to make more.
  absl::Status CheckRoom() const { return CheckTotals(/*rows=*/false); }

  // Takes a push of `bytes`, which brings rows if `rows`, from the quotas. As Quota::Take.
  absl::StatusOr<int64_t> TakePush(uint64_t bytes, bool rows) const;

  // Whether role and tables are those of `other`.
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
  mutable absl::flat_hash_map<TableId, uint8_t> rights_ ABSL_GUARDED_BY(mu_);  // Of the tables asked for so far.
};

using GrantRef = std::shared_ptr<const Grant>;

}  // namespace lodestone::server
