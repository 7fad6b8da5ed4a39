#include "worker/training/agreed_tables.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"
#include "worker/client/client.h"

namespace lodestone::worker {
namespace {

constexpr int64_t kAskEveryMs = 100;

bool IsHeld(const v1::TableSpec& table) {
  return std::any_of(table.held().begin(), table.held().end(),
                     [](const std::string& path) { return absl::StartsWith(path, "consistency"); });
}

bool HaveOneOrder(const v1::TableSpec& a, const v1::TableSpec& b) {
  return (!HasSteps(a) && !HasSteps(b)) || a.consistency().SerializeAsString() == b.consistency().SerializeAsString();
}

bool AreSame(const std::vector<std::vector<v1::TableSpec>>& a, const std::vector<std::vector<v1::TableSpec>>& b) {
  const auto is_same = [](const v1::TableSpec& x, const v1::TableSpec& y) {
    return x.SerializeAsString() == y.SerializeAsString();
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](const auto& x, const auto& y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end(), is_same);
  });
}

// Gives the table the consistency that an operator holds, if one does. Returns how servers disagree about it, in words;
// empty: they do not.
std::string TakeHeld(const std::vector<std::vector<v1::TableSpec>>& by_server, v1::TableSpec* table) {
  const v1::TableSpec* held = nullptr;
  std::vector<const v1::TableSpec*> known;
  for (const std::vector<v1::TableSpec>& described : by_server) {
    for (const v1::TableSpec& spec : described) {
      if (spec.name() != table->name()) continue;
      known.push_back(&spec);
      if (IsHeld(spec) && (held == nullptr || spec.revision() > held->revision())) held = &spec;
    }
  }
  if (held == nullptr) return "";
  *table->mutable_consistency() = held->consistency();
  for (const v1::TableSpec* const spec : known) {
    if (!HaveOneOrder(*spec, *held)) return absl::StrCat("servers have different ones of table `", table->name(), "`");
  }
  return "";
}

// The same of all tables, also among each other.
std::string TakeHeld(const std::vector<std::vector<v1::TableSpec>>& by_server, std::vector<v1::TableSpec>* tables) {
  for (v1::TableSpec& table : *tables) {
    if (std::string differs = TakeHeld(by_server, &table); !differs.empty()) return differs;
    if (HaveOneOrder(table, tables->front())) continue;
    return absl::StrCat("tables `", tables->front().name(), "` and `", table.name(), "` have different ones");
  }
  return "";
}

}  // namespace

absl::StatusOr<std::optional<std::vector<TableHandle>>> EnsureAgreedTables(Client* client,
                                                                           std::vector<v1::TableSpec> specs,
                                                                           const AgreementWait& wait) {
  std::vector<std::string> names;
  for (const v1::TableSpec& spec : specs) names.push_back(spec.name());
  const int64_t until_ms = wait.time->NowMs() + wait.timeout_ms;
  bool waits = false;
  const absl::Cleanup end = [&] {
    if (waits) wait.on_wait("");
  };
  while (true) {
    LODESTONE_ASSIGN_OR_RETURN(const auto by_server, client->DescribeByServer(names));
    std::vector<v1::TableSpec> tables = specs;
    const std::string differs = TakeHeld(by_server, &tables);
    if (differs.empty()) {
      absl::StatusOr<std::vector<TableHandle>> ensured = client->EnsureTables(tables);
      if (!absl::IsFailedPrecondition(ensured.status())) return ensured;
      // An operator may have changed the order in between.
      LODESTONE_ASSIGN_OR_RETURN(const auto described_again, client->DescribeByServer(names));
      if (AreSame(by_server, described_again)) return ensured.status();
      continue;
    }
    const std::string what = absl::StrCat("one order of steps of all tables of the model: ", differs,
                                          ", as if psctl set had been ended in the middle; run it again");
    if (wait.time->NowMs() >= until_ms) return absl::FailedPreconditionError(absl::StrCat("there is not ", what));
    if (wait.stops()) return std::optional<std::vector<TableHandle>>();
    if (!std::exchange(waits, true)) {
      LODESTONE_LOG(WARN, "trainer", "waits for {}", what);
      wait.on_wait(what);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(kAskEveryMs));
  }
}

}  // namespace lodestone::worker
