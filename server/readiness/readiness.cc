#include "server/readiness/readiness.h"

#include "absl/strings/str_cat.h"
#include "common/telemetry/log.h"

namespace lodestone::server {
namespace {

// Health is asked for by these names, and by "" for the ps as a whole.
constexpr char kParameterServerName[] = "lodestone.v1.ParameterServer";
constexpr char kCoordinatorName[] = "lodestone.v1.Coordinator";
constexpr char kAdminName[] = "lodestone.v1.Admin";

}  // namespace

void Readiness::Tell(grpc::HealthCheckServiceInterface* health) {
  {
    MutexLock lock(&mu_);
    health_ = health;
  }
  TellHealth();
}

void Readiness::Begin(bool wants_copies) {
  {
    MutexLock lock(&mu_);
    synced_ = !wants_copies;
    began_ms_ = time_->NowMs();
    began_ = true;
  }
  TellHealth();
}

void Readiness::SetWell(bool well) {
  {
    MutexLock lock(&mu_);
    well_ = well;
  }
  TellHealth();
}

void Readiness::NoteToSync(uint32_t shards) {
  {
    MutexLock lock(&mu_);
    // The answer is to a heartbeat after the map that this ps began with: it counts the shards of that.
    if (!serving() || synced_ || stopping_) return;
    to_sync_ = shards;
    if (to_sync_ > 0) return;
    synced_ = true;
  }
  LODESTONE_LOG(INFO, "server", "is ready: all shards have all their copies, as far as there are servers");
  TellHealth();
}

void Readiness::SetCoordinator(bool serves) { health()->SetServingStatus(kCoordinatorName, serves); }

void Readiness::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  if (grpc::HealthCheckServiceInterface* const told = health(); told != nullptr) told->Shutdown();
}

grpc::HealthCheckServiceInterface* Readiness::health() const {
  MutexLock lock(&mu_);
  return health_;
}

void Readiness::TellHealth() {
  MutexLock in_turn(&health_mu_);
  bool ready = false, serving = false;
  {
    MutexLock lock(&mu_);
    serving = this->serving();
    ready = serving && synced_;
  }
  grpc::HealthCheckServiceInterface* const told = health();
  told->SetServingStatus("", ready);
  told->SetServingStatus(kParameterServerName, serving);
  told->SetServingStatus(kAdminName, true);  // Answers from the start.
}

absl::Status Readiness::Check() const {
  MutexLock lock(&mu_);
  if (stopping_) return absl::UnavailableError("this ps ends");
  return serving() && synced_ ? absl::OkStatus() : absl::UnavailableError("");
}

void Readiness::FillStatus(v1::StatusResponse* status) const {
  MutexLock lock(&mu_);
  if (!serving() || synced_ || to_sync_ == 0) return;
  v1::WaitStatus* const wait = status->add_waits();
  wait->set_who(name_);
  wait->set_background(true);
  wait->set_what(absl::StrCat(to_sync_, " shards of the cluster to have all their copies"));
  wait->set_seconds(static_cast<double>(time_->NowMs() - began_ms_) / 1000);
}

}  // namespace lodestone::server
