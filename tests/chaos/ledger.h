// What the servers must hold: the sum of all acknowledged pushes, each once, and of each other push all or nothing on
// each shard. Compares that with what they do hold, exactly.
//
// Thread-safe, but for Check: no push may be recorded while it runs.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/mutex.h"
#include "common/base/types.h"
#include "tests/chaos/workload.h"

namespace lodestone::chaos {

// What was found wrong, in updates of one block or row by one push.
struct Verdict {
  uint64_t compared = 0;              // Numbers.
  uint64_t lost = 0;                  // Acknowledged, and not there.
  uint64_t doubled = 0;               // There more than once.
  uint64_t wrong = 0;                 // Numbers that no set of pushes explains, and pushes that are on a shard in part.
  uint64_t judged = 0;                // Acknowledged pushes, each by its own digit.
  uint64_t undecided = 0;             // Pushes that were not acknowledged, on each of their shards.
  uint64_t applied = 0;               // Those of them that are there.
  std::vector<std::string> findings;  // The first few, in words.

  bool ok() const { return lost == 0 && doubled == 0 && wrong == 0; }
  void Add(const Verdict& other);
};

// All values of the servers.
struct Held {
  std::vector<float> dense;  // By element.
  std::vector<float> large;
  absl::flat_hash_map<Key, std::vector<float>> rows;  // By key, the keys that the ledger asked for.
  absl::flat_hash_map<Key, std::vector<float>> adagrad;
  absl::flat_hash_map<Key, std::vector<float>> digits;
  std::vector<Version> versions;  // By shard.

  friend bool operator==(const Held&, const Held&) = default;
};

class Ledger {
 public:
  // `workload` must outlive this. `others_push`: the shards get other pushes too, so that their versions say nothing.
  explicit Ledger(const Workload* workload, bool others_push = false);

  void Acknowledged(const Push& push);
  // It ended without an acknowledgement: it may have been applied or not.
  void Unanswered(const Push& push);

  uint64_t acknowledged() const;

  // Rows that Check needs.
  std::vector<Key> KeysOf(TableName table) const;

  // Compares. After it, what is held counts as what must be held: each mistake is found once, and of pushes without an
  // acknowledgement it is known what became of them. REQUIRES: none of those can still be applied.
  Verdict Check(const Held& held);

 private:
  // Of one number: what is there at least, and with the pushes that were not acknowledged at most.
  struct Bounds {
    int64_t least = 0;
    int64_t most = 0;
    bool counts = false;
  };
  using Row = std::vector<Bounds>;
  // How often a push may be there.
  struct Digit {
    uint8_t least : 3 = 0;
    uint8_t most : 3 = 0;
    bool sent : 1 = false;
    bool acknowledged : 1 = false;
  };

  void Record(const Push& push, bool acknowledged);
  void RecordSteady(const Push& push, bool acknowledged) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CheckLast(const Held& held, const Push& push, bool acknowledged, Verdict* verdict)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CheckDense(TableName table, const std::vector<float>& held, Verdict* verdict) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CheckRows(const Held& held, Verdict* verdict) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CheckAdagrad(const Held& held, Verdict* verdict) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CheckDigits(const Held& held, Verdict* verdict) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CheckDigit(uint32_t slot, uint64_t number, const Held& held, Verdict* verdict)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CheckVersions(const Held& held, Verdict* verdict) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<Bounds>* CellsOf(TableName table) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return table == TableName::kDense ? &dense_ : &large_;
  }
  // What of `push` on `shard` there is: the number of each receipt, above what was there before it.
  struct Receipt {
    std::string where;
    Bounds* bounds = nullptr;
    double value = 0;
  };
  std::vector<Receipt> ReceiptsOf(const Held& held, const Push& push, ShardId shard) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Compares `value` with `bounds`, and makes them its.
  static void Compare(double value, const std::string& where, Bounds* bounds, Verdict* verdict);

  const Workload* const workload_;
  const bool others_push_;

  mutable Mutex mu_;
  uint64_t acknowledged_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<Bounds> dense_ ABSL_GUARDED_BY(mu_);
  std::vector<Bounds> large_ ABSL_GUARDED_BY(mu_);
  std::unordered_map<Key, Row> rows_ ABSL_GUARDED_BY(mu_);
  std::unordered_map<Key, Bounds> adagrad_ ABSL_GUARDED_BY(mu_);
  std::vector<std::vector<Digit>> digits_ ABSL_GUARDED_BY(mu_);   // By slot and number.
  std::vector<Bounds> versions_ ABSL_GUARDED_BY(mu_);             // By shard.
  std::vector<std::pair<Push, bool>> last_ ABSL_GUARDED_BY(mu_);  // Since the last check; whether acknowledged.
};

}  // namespace lodestone::chaos
