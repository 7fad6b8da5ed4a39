#include "tools/psctl/client/table_setter.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/time_source.h"
#include "tools/psctl/client/admin_client.h"
#include "tools/psctl/text/exit_code.h"

namespace lodestone::psctl {
namespace {

constexpr int kSetAgainMs = 200;
constexpr int kTellAfterMs = 1000;

absl::Status Interrupted() {
  return absl::CancelledError("interrupted, and some servers may have it: run this again, workers wait for it");
}

bool IsRefused(const SetPart& part) {
  return absl::IsInvalidArgument(part.done.status()) || absl::IsNotFound(part.done.status()) ||
         absl::IsFailedPrecondition(part.done.status());
}

bool HasChanged(const std::vector<SetPart>& parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [](const SetPart& part) { return part.done.ok() && part.done->changed(); });
}

// Adds the ps that have changed something to `changed`, and has the parts say so of those that did it before.
void NoteChanged(std::set<uint32_t>* changed, std::vector<SetPart>* parts) {
  for (SetPart& part : *parts) {
    if (!part.done.ok()) continue;
    if (part.done->changed()) changed->insert(part.server);
    part.done->set_changed(changed->contains(part.server));
  }
}

// What the pause of training takes so long for; a line each.
void TellWait(const absl::StatusOr<std::vector<SetPart>>& parts, const std::function<void(const std::string&)>& tell) {
  if (!parts.ok()) return tell(std::string(parts.status().message()));
  for (const SetPart& part : *parts) {
    if (!part.done.ok()) tell(absl::StrCat("ps ", part.server, ": ", part.done.status().message()));
  }
}

}  // namespace

bool HasFailed(const std::vector<SetPart>& parts) {
  return std::any_of(parts.begin(), parts.end(), [](const SetPart& part) { return !part.done.ok(); });
}

v1::TableSpec NewestOf(const std::vector<SetPart>& parts) {
  v1::TableSpec newest;
  for (const SetPart& part : parts) {
    if (!part.done.ok() || part.done->absent()) continue;
    if (newest.name().empty() || part.done->settings().revision() > newest.revision()) newest = part.done->settings();
  }
  return newest;
}

absl::StatusOr<std::vector<SetPart>> TableSetter::Set(const v1::SetTableRequest& request) const {
  return AskServers<SetPart>(address_, timeout_ms_,
                             [&](const std::string& server) { return RequestSetTable(server, request, timeout_ms_); });
}

absl::StatusOr<std::vector<SetPart>> TableSetter::Ask(const std::string& table) const {
  v1::SetTableRequest question;
  question.set_table(table);
  return Set(question);
}

absl::StatusOr<std::vector<SetPart>> TableSetter::SetWhileAtRest(
    v1::SetTableRequest request, HeldPause* pause, const std::function<void(const std::string&)>& tell_wait) const {
  const TableSetter attempt(address_, std::min<int>(timeout_ms_, HeldPause::kSureMs / 2));
  const SteadyTime time;
  const int64_t begin_ms = time.NowMs();
  std::set<uint32_t> changed;
  bool told = false;
  bool confirms = false;  // All ps have it, and are asked once more without a wait.
  while (true) {
    const absl::StatusOr<uint64_t> orders = pause->StillRests(timeout_ms_);
    if (absl::IsCancelled(orders.status())) return Interrupted();
    LODESTONE_RETURN_IF_ERROR(orders.status());
    request.set_orders(*orders);
    absl::StatusOr<std::vector<SetPart>> parts = attempt.Set(request);
    const bool all_done = parts.ok() && !HasFailed(*parts);
    const bool all_had_it = all_done && !HasChanged(*parts);
    if (parts.ok()) {
      NoteChanged(&changed, &*parts);
      if (all_had_it || std::any_of(parts->begin(), parts->end(), IsRefused)) return parts;
      request.mutable_settings()->set_revision(
          std::max<uint64_t>(request.settings().revision(), NewestOf(*parts).revision()));
    }
    if (all_done && !std::exchange(confirms, true)) continue;
    const int64_t waited_ms = time.NowMs() - begin_ms;
    if (waited_ms >= timeout_ms_) {
      if (!all_done) return parts;
      return absl::DeadlineExceededError("servers changed it again and again: is there another operator?");
    }
    if (waited_ms >= kTellAfterMs && !std::exchange(told, true)) TellWait(parts, tell_wait);
    if (NobodyReads(kSetAgainMs)) return Interrupted();
  }
}

}  // namespace lodestone::psctl
