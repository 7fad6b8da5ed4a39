// The credentials of this process: TLS certificates and a token, made once from SecurityConfig, for every channel that
// it opens and every port that it serves.
//
// Certificates, authorities and token are read again when their files change: new connections use the new ones, and
// each call carries the newest token. gRPC takes over a certificate up to a second later.
//
// A token is sent by TLS or within this machine only: calls that would send it in plain text over the network end with
// UNAUTHENTICATED, and nothing of them is sent.
//
// Thread-safe. Channels and ports share its ownership.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/security/auth_processor.h"
#include "common/security/certificates.h"
#include "common/security/token_file.h"
#include "grpcpp/channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/support/channel_arguments.h"
#include "proto/config.pb.h"

namespace lodestone {

class Credentials;
// Null: neither encryption nor a token.
using CredentialsRef = std::shared_ptr<const Credentials>;

class Credentials : public std::enable_shared_from_this<Credentials> {
 public:
  // Null if nothing of it is configured. INVALID_ARGUMENT, NOT_FOUND and so on, naming field and file, if a file cannot
  // be used, or if the fields contradict each other. `section`: see ReadCertificates.
  static absl::StatusOr<CredentialsRef> Make(const v1::SecurityConfig& security,
                                             absl::string_view section = "security");
  ~Credentials();
  Credentials(const Credentials&) = delete;
  Credentials& operator=(const Credentials&) = delete;

  // Whether the connections that this process makes are encrypted, and whether those that it takes are.
  bool calls_by_tls() const { return !security_.authorities().empty(); }
  bool serves_by_tls() const { return !security_.certificate().empty(); }
  bool has_token() const { return token_ != nullptr; }

  // A channel to `target`. With TLS the server's certificate must be of the host that is called.
  std::shared_ptr<grpc::Channel> Channel(const std::string& target, const grpc::ChannelArguments& settings) const;

  // For a port of a server, each of whose calls `authorize` judges (null: all are admitted).
  std::shared_ptr<grpc::ServerCredentials> Server(Authorizer authorize) const;

  // For the HTTP port; null without a certificate.
  std::shared_ptr<CertificateFiles> certificates() const { return serves_by_tls() ? certificates_ : nullptr; }
  bool asks_clients() const { return security_.client_certificates(); }

  // As CertificateFiles::Warning.
  std::string Warning() const { return certificates_ == nullptr ? "" : certificates_->Warning(); }

 private:
  explicit Credentials(const v1::SecurityConfig& security);
  absl::Status Open(absl::string_view section);
  void WarnOfReaders() const;
  // Reads the certificates again each reload_ms, until the end.
  void RunReloads();

  // Constant after Make; synchronise themselves.
  const v1::SecurityConfig security_;
  const SteadyTime time_;
  std::shared_ptr<TokenFile> token_;                                             // Null: there is none.
  std::shared_ptr<CertificateFiles> certificates_;                               // Null without TLS.
  std::shared_ptr<grpc::experimental::FileWatcherCertificateProvider> watcher_;  // Of those; null without TLS.

  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread reloads_;  // Last: it uses all of the above.
};

// The same for a process that may have no credentials.
std::shared_ptr<grpc::Channel> ChannelWith(const CredentialsRef& credentials, const std::string& target,
                                           const grpc::ChannelArguments& settings);
std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(const CredentialsRef& credentials, Authorizer authorize);

}  // namespace lodestone
