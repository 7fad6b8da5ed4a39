// The part of CoordinatorService that saves the state, and lets answers wait for that.
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"
#include "server/coordinator/service.h"

namespace lodestone::server {

bool CoordinatorService::WaitForSave(grpc::ServerUnaryReactor* reactor, bool saved, absl::Status* status) {
  if (!status->ok() || saved) return false;
  if (shut_down_) {
    *status = absl::UnavailableError("the coordinator shuts down");
    return false;
  }
  if (unsaved_.size() >= unsaved_max_) {
    *status = absl::ResourceExhaustedError(
        absl::StrCat(unsaved_.size(), " answers wait for the coordinator's state to be saved, its limit"));
    return false;
  }
  unsaved_.push_back(reactor);
  save_wanted_ = true;
  wake_saver_.NotifyOne();
  return true;
}

void CoordinatorService::RunSaves() {
  for (bool last = false; !last;) {
    std::vector<grpc::ServerUnaryReactor*> waiting;
    std::optional<v1::CoordinatorState> state;
    uint64_t changes = 0, route_changes = 0, epoch = 0;
    {
      MutexLock lock(&mu_);
      while (!shut_down_ && !save_wanted_) wake_saver_.Wait(&mu_);
      last = shut_down_;
      save_wanted_ = false;
      waiting.swap(unsaved_);
      changes = membership_.changes();
      route_changes = membership_.route_changes();
      epoch = membership_.epoch();
      if (!AllSaved()) state = membership_.SaveState();
    }
    absl::Status status;
    if (state.has_value()) {
      status = Annotate(save_(*state), "the coordinator's state cannot be saved");
      MutexLock lock(&mu_);
      NoteSaveError(status);
      if (status.ok()) {
        saved_changes_ = changes;
        saved_route_changes_ = route_changes;
        saved_epoch_ = epoch;
      }
    }
    if (!status.ok()) status = absl::UnavailableError(status.message());
    for (grpc::ServerUnaryReactor* const reactor : waiting) reactor->Finish(Told(status));
  }
}

void CoordinatorService::NoteSaveError(const absl::Status& status) {
  if (!status.ok() && save_error_.ok()) {
    save_error_since_ms_ = time_->NowMs();
    LODESTONE_LOG(ERROR, "coordinator", "nobody can join or leave: {}", status.ToString());
  } else if (status.ok() && !save_error_.ok()) {
    LODESTONE_LOG(INFO, "coordinator", "the state can be saved again");
  }
  save_error_ = status;
}

}  // namespace lodestone::server
