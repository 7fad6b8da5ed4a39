#include "tests/chaos/inventory.h"

#include <memory>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "worker/client/client.h"

namespace lodestone::chaos {
namespace {

constexpr int kPullsMax = 20;

absl::StatusOr<Held> PullOnce(worker::Client* client, const std::vector<worker::TableHandle>& tables,
                              const Workload& workload, const std::vector<Key>& row_keys,
                              const std::vector<Key>& adagrad_keys, const std::vector<Key>& digit_keys) {
  const auto table = [&](TableName name) { return &tables[static_cast<int>(name)]; };
  Held held;
  held.dense.resize(workload.ElementsOf(TableName::kDense));
  held.large.resize(workload.ElementsOf(TableName::kLarge));
  const size_t dim = workload.DimOf(TableName::kRows);
  std::vector<float> rows(row_keys.size() * dim);
  std::vector<float> adagrad(adagrad_keys.size());
  const size_t digits_dim = workload.DimOf(TableName::kDigits);
  std::vector<float> digits(digit_keys.size() * digits_dim);
  std::vector<worker::RowPull> row_pulls;
  if (!row_keys.empty()) row_pulls.push_back({table(TableName::kRows), row_keys, rows.data()});
  if (!adagrad_keys.empty()) row_pulls.push_back({table(TableName::kAdagrad), adagrad_keys, adagrad.data()});
  if (!digit_keys.empty()) row_pulls.push_back({table(TableName::kDigits), digit_keys, digits.data()});
  LODESTONE_ASSIGN_OR_RETURN(held.versions, client->PullNow({{table(TableName::kDense), held.dense.data()},
                                                             {table(TableName::kLarge), held.large.data()}},
                                                            row_pulls));
  for (size_t i = 0; i < row_keys.size(); ++i) {
    held.rows[row_keys[i]].assign(rows.begin() + i * dim, rows.begin() + (i + 1) * dim);
  }
  for (size_t i = 0; i < adagrad_keys.size(); ++i) held.adagrad[adagrad_keys[i]] = {adagrad[i]};
  for (size_t i = 0; i < digit_keys.size(); ++i) {
    held.digits[digit_keys[i]].assign(digits.begin() + i * digits_dim, digits.begin() + (i + 1) * digits_dim);
  }
  return held;
}

}  // namespace

Inventory::Inventory(const v1::Config& config, const Workload* workload, const Ledger& ledger)
    : config_(config),
      workload_(workload),
      rows_(ledger.KeysOf(TableName::kRows)),
      adagrad_(ledger.KeysOf(TableName::kAdagrad)),
      digits_(ledger.KeysOf(TableName::kDigits)),
      thread_([this] {
        absl::StatusOr<Held> held = Pull();
        MutexLock lock(&mu_);
        held_ = std::move(held);
        done_ = true;
      }) {}

Inventory::~Inventory() { thread_.join(); }

bool Inventory::done() const {
  MutexLock lock(&mu_);
  return done_;
}

absl::StatusOr<Held> Inventory::Take() {
  MutexLock lock(&mu_);
  return std::move(held_);
}

absl::StatusOr<Held> Inventory::Pull() const {
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<worker::Client> client, worker::Client::Connect(config_));
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<worker::TableHandle> tables, client->EnsureTables(workload_->Tables()));
  LODESTONE_ASSIGN_OR_RETURN(Held held, PullOnce(client.get(), tables, *workload_, rows_, adagrad_, digits_));
  for (int pull = 1; pull < kPullsMax; ++pull) {
    LODESTONE_ASSIGN_OR_RETURN(Held again, PullOnce(client.get(), tables, *workload_, rows_, adagrad_, digits_));
    if (again == held) return held;
    held = std::move(again);
  }
  return absl::InternalError("what the servers hold does not come to rest though nobody pushes");
}

}  // namespace lodestone::chaos
