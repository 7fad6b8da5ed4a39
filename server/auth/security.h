// The security of a ps: its own credentials, the access of its callers, and the audit log. One thread reads the files
// again each security.reload_ms.
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
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/base/timer.h"
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
  // something cannot be used; FAILED_PRECONDITION with security.open: refuse if the ps would be open (IsOpen) and
  // listens beyond loopback.
  static absl::StatusOr<std::unique_ptr<Security>> Open(const v1::Config& config);
  ~Security();

  // The tables that rights and quotas refer to. REQUIRES: no call has come yet.
  void Know(TableInfo tables) { tables_ = std::move(tables); }

  bool serves_by_tls() const { return credentials_ != nullptr && credentials_->serves_by_tls(); }
  // Of the channels of this ps; null: no TLS and no token.
  const CredentialsRef& credentials() const { return credentials_; }
  // Null: every caller may do everything.
  Access* access() { return access_.has_value() ? &*access_ : nullptr; }
  Audit* audit() { return audit_.get(); }

  // For a port of the gRPC server.
  std::shared_ptr<grpc::ServerCredentials> port();
  // For the HTTP port.
  HttpServer::Security http();
  // An in-process channel to `server`, the gRPC server of this ps, whose calls may do everything.
  std::shared_ptr<grpc::Channel> OwnChannel(grpc::Server* server, const grpc::ChannelArguments& settings);

  // Reads the files now; a thread of its own does so periodically. Identities that have changed count from the second
  // reading on that finds them.
  void Reload();

  // Sets the identities and the security warning.
  void FillStatus(v1::StatusResponse* status) const;

 private:
  explicit Security(const v1::Config& config) : config_(config), timer_(&time_, Timer::AtEnd::kRun) {}
  absl::Status OpenAll();
  absl::Status OpenIdentities();
  // Uses the file of identities once two readings agree: one that is being written may be a file that is right, in
  // which the last limits of its last identity are missing.
  void ReloadIdentities();
  // What Refresh read last. INVALID_ARGUMENT, naming file and line.
  absl::StatusOr<std::shared_ptr<const Identities>> ParseIdentities() const;
  void RunReloads();

  // Constant after Open; synchronise themselves.
  const v1::Config config_;
  TableInfo tables_;
  AnchoredTime time_;
  Timer timer_;
  std::string open_warning_;  // Empty: nothing to warn of.
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
  bool unjudged_ = false;                  // Of Reload: identities_ was read once.
  std::thread reloads_;                    // Last: it uses all of the above.
};

// True if a ps with this configuration serves any caller that can connect to it.
bool IsOpen(const v1::Config& config);
// The warning about a ps that listens beyond loopback and is open, or takes tokens without encryption; else empty.
std::string OpenWarning(const v1::Config& config);

}  // namespace lodestone::server
