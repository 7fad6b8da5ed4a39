#include "server/coordinator/state_saver.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"

namespace lodestone::server {

StateSaver::StateSaver(Options options) : options_(std::move(options)) {
  if (options_.save != nullptr) thread_ = std::thread([this] { Run(); });
}

StateSaver::~StateSaver() {
  Stop();
  if (thread_.joinable()) thread_.join();
}

void StateSaver::SetSaved(const Version& version) {
  MutexLock lock(&mu_);
  saved_ = version;
}

void StateSaver::SaveSoon(uint64_t changes) {
  MutexLock lock(&mu_);
  if (saved_.changes == changes) return;
  wanted_ = true;
  wake_.NotifyOne();
}

void StateSaver::Stop() {
  MutexLock lock(&mu_);
  stopping_ = true;
  wake_.NotifyAll();
}

bool StateSaver::IsSaved(uint64_t changes) const {
  MutexLock lock(&mu_);
  return options_.save == nullptr || saved_.changes == changes;
}

bool StateSaver::IsRouteSaved(uint64_t route_changes) const {
  MutexLock lock(&mu_);
  return options_.save == nullptr || saved_.route_changes == route_changes;
}

uint64_t StateSaver::EpochToTell(uint64_t current) const {
  MutexLock lock(&mu_);
  return options_.save == nullptr ? current : saved_.epoch;
}

uint64_t StateSaver::EndedToTell(uint64_t current) const {
  MutexLock lock(&mu_);
  return options_.save == nullptr ? current : saved_.ended_to;
}

bool StateSaver::Hold(grpc::ServerUnaryReactor* call, absl::Status* status) {
  return Hold([this, call](const absl::Status& saved) { options_.finish(call, saved); }, status);
}

bool StateSaver::Hold(Done done, absl::Status* status) {
  MutexLock lock(&mu_);
  if (stopping_) {
    *status = absl::UnavailableError("the coordinator shuts down");
    return false;
  }
  if (waiting_.size() >= options_.waiting_max) {
    *status = absl::ResourceExhaustedError(
        absl::StrCat(waiting_.size(), " answers wait for the coordinator's state to be saved, its limit"));
    return false;
  }
  waiting_.push_back(std::move(done));
  wanted_ = true;
  wake_.NotifyOne();
  return true;
}

void StateSaver::Run() {
  for (bool last = false; !last;) {
    std::vector<Done> waiting;
    uint64_t saved_changes = 0;
    {
      MutexLock lock(&mu_);
      while (!stopping_ && !wanted_) wake_.Wait(&mu_);
      last = stopping_;
      wanted_ = false;
      waiting.swap(waiting_);
      saved_changes = saved_.changes;
    }
    // No older than what the calls that wait have changed: they came before.
    const std::optional<Snapshot> snapshot = options_.changed_since(saved_changes);
    absl::Status status;
    if (snapshot.has_value()) {
      status = Annotate(options_.save(snapshot->state), "the coordinator's state cannot be saved");
      MutexLock lock(&mu_);
      NoteResult(status);
      if (status.ok()) saved_ = snapshot->version;
    }
    if (!status.ok()) status = absl::UnavailableError(status.message());
    for (const Done& done : waiting) done(status);
  }
}

void StateSaver::NoteResult(const absl::Status& status) {
  if (!status.ok() && error_.ok()) {
    error_since_ms_ = options_.time->NowMs();
    LODESTONE_LOG(ERROR, "coordinator", "no process can join or leave: {}", status.ToString());
  } else if (status.ok() && !error_.ok()) {
    LODESTONE_LOG(INFO, "coordinator", "the state can be saved again");
  }
  error_ = status;
}

void StateSaver::FillStatus(v1::StatusResponse* status) const {
  MutexLock lock(&mu_);
  if (error_.ok()) return;
  v1::WaitStatus* const wait = status->add_waits();
  wait->set_who("who joins or leaves");
  wait->set_what(std::string(error_.message()));
  wait->add_targets()->set_kind(v1::WaitTarget::DISK);
  wait->set_seconds(static_cast<double>(options_.time->NowMs() - error_since_ms_) / 1000.0);
}

}  // namespace lodestone::server
