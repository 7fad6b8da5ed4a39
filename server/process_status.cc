// The part of ServerProcess that tells others how it goes: by gRPC, by HTTP and in heartbeats.
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/http/monitoring.h"
#include "common/telemetry/log.h"
#include "server/dashboard/dashboard.h"
#include "server/monitoring/ps_metrics.h"
#include "server/process_impl.h"

namespace lodestone::server {

absl::Status ServerProcess::Impl::StartHttp() {
  const std::string& listen = config_.server().http_listen();
  if (listen.empty()) return absl::OkStatus();
  HttpServer::Paths paths =
      PsMonitoringPaths([this](v1::StatusResponse* status) { FillStatus(status); }, [this] { return Readiness(); });
  paths.merge(PageHandlers({[this] {
                              v1::StatusResponse status;
                              FillStatus(&status);
                              return status;
                            },
                            [this](const v1::EventsRequest& request) { return Events(request.after_id()); },
                            [this] { return History(); }}));
  LODESTONE_ASSIGN_OR_RETURN(http_, HttpServer::Start(listen, std::move(paths), security_->http()));
  const std::string http = HttpAddress(listen, identity_.address, http_->port());
  LODESTONE_LOG(INFO, "server", "answers HTTP on={} port={} address={}", listen, http_->port(), http);
  MutexLock lock(&mu_);
  identity_.http = http;
  return absl::OkStatus();
}

absl::Status ServerProcess::Impl::Readiness() const {
  MutexLock lock(&mu_);
  if (stopping_) return absl::UnavailableError("this ps ends");
  return serving_ ? absl::OkStatus() : absl::UnavailableError("");
}

void ServerProcess::Impl::FillStatus(v1::StatusResponse* status) const {
  store_.FillStatus(status);
  if (storage_ != nullptr) storage_->FillStatus(status);
  broadcaster_.FillStatus(status);
  if (replication_.has_value()) replication_->FillStatus(status);
  coordinator_.FillStatus(status);
  security_->FillStatus(status);
  std::shared_ptr<Member> member;
  {
    MutexLock lock(&mu_);
    FillProcess(identity_, status->mutable_server());
    member = member_;
  }
  if (member != nullptr) member->FillStatus(status);
}

v1::EventsResponse ServerProcess::Impl::Events(uint64_t after_id) const {
  std::optional<v1::EventsResponse> of_cluster = coordinator_.Events(after_id);
  return of_cluster.has_value() ? *std::move(of_cluster) : events_.Tell(after_id);
}

v1::ServerProgress ServerProcess::Impl::Progress() const {
  v1::StatusResponse status;  // But for what the disk may keep waiting, as a heartbeat must not.
  store_.FillStatus(&status);
  if (replication_.has_value()) replication_->FillStatus(&status);
  MutexLock lock(&mu_);
  FillProcess(identity_, status.mutable_server());
  return ProgressOf(status);
}

}  // namespace lodestone::server
