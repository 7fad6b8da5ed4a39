// All that a ps has of security: what it shows to others, who may call it, and what it writes about that. One thread
// looks at the files each security.reload_ms.
//
// Thread-safe after Open. Must outlive the gRPC server, its streams and the HTTP port.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/timer.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/http/http_server.h"
#include "common/security/credentials.h"
#include "common/security/secret_file.h"
#include "grpcpp/channel.h"
#include "grpcpp/server.h"
#include "grpcpp/support/channel_arguments.h"
#include "proto/admin.pb.h"
#include "proto/config.pb.h"
#include "server/auth/access.h"
#include "server/auth/audit_log.h"

namespace lodestone::server {

class Security {
 public:
  // Reads what config.security names. INVALID_ARGUMENT, NOT_FOUND and so on, naming field and file (and line), if
  // something cannot be used; FAILED_PRECONDITION with security.open: refuse if anybody who can connect from elsewhere
  // may call.
  static absl::StatusOr<std::unique_ptr<Security>> Open(const v1::Config& config);
  ~Security();

  // Before calls come: what rights and quotas look at.
  void Know(TableInfo tables) { tables_ = std::move(tables); }

  bool serves_by_tls() const { return credentials_ != nullptr && credentials_->serves_by_tls(); }
  // For the channels of this ps; null: plain ones.
  const CredentialsRef& credentials() const { return credentials_; }
  // Null: everybody may do everything.
  Access* access() { return access_.has_value() ? &*access_ : nullptr; }
  Audit* audit() { return audit_.get(); }

  // For a port of the gRPC server.
  std::shared_ptr<grpc::ServerCredentials> port();
  // For the HTTP port.
  HttpServer::Security http();
  // A channel to `server`, which is this ps's own, by which it may do everything there.
  std::shared_ptr<grpc::Channel> OwnChannel(grpc::Server* server, const grpc::ChannelArguments& settings);

  // Looks at the files now. Happens by itself.
  void Reload();

  // Sets the identities and what of the security is worth knowing.
  void FillStatus(v1::StatusResponse* status) const;

 private:
  explicit Security(const v1::Config& config) : config_(config), timer_(&time_, Timer::AtEnd::kRun) {}
  absl::Status OpenAll();
  absl::Status OpenIdentities();
  void ReloadIdentities();
  void RunReloads();

  // Constant after Open; synchronise themselves.
  const v1::Config config_;
  TableInfo tables_;
  AnchoredTime time_;
  Timer timer_;
  std::string open_warning_;  // Empty: not everybody may connect, or only from this machine.
  CredentialsRef credentials_;
  std::unique_ptr<Audit> audit_;
  std::optional<Access> access_;

  mutable Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::string identities_problem_ ABSL_GUARDED_BY(mu_);  // Why the newest file is not used; empty: it is.

  Mutex reload_mu_;                        // Held by Reload.
  std::optional<WatchedFile> identities_;  // Of Open, then of Reload.
  bool read_failed_ = false;               // Of Reload.
  std::thread reloads_;                    // Last: it uses all of the above.
};

// Whether everybody may call a ps with this configuration who can connect to it.
bool IsOpen(const v1::Config& config);
// What is to be said of one that listens beyond loopback and is open, or takes tokens without encryption; empty:
// nothing.
std::string OpenWarning(const v1::Config& config);

}  // namespace lodestone::server
