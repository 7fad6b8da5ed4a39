#include "common/security/credentials.h"

#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/host_port.h"
#include "common/base/status.h"
#include "common/config/config_check.h"
#include "common/security/refusing_channel.h"
#include "common/security/secret_file.h"
#include "common/security/token_plugin.h"
#include "common/telemetry/log.h"
#include "grpc/grpc.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/tls_credentials_options.h"

namespace lodestone {
namespace {

// The end of the reading of certificates, at the latest before OpenSSL cleans up as the process exits: gRPC releases
// channels, and so their Credentials, on threads of its own, possibly later.
class AtExit {
 public:
  // What it returns is never freed if the process exits.
  using End = std::function<std::shared_ptr<const void>()>;

  static AtExit& Get() {
    // Registered after OpenSSL's own handler, so that it runs before that.
    static auto* const at_exit = [] {
      std::atexit([] { Get().Run(); });
      return new AtExit;
    }();
    return *at_exit;
  }
  // Calls `end` as the process exits, unless it is taken before.
  void Add(const void* owner, End end) {
    MutexLock lock(&mu_);
    ends_[owner] = std::move(end);
  }
  // Null if there is none, or it was called.
  End Take(const void* owner) {
    MutexLock lock(&mu_);
    const auto found = ends_.find(owner);
    return found == ends_.end() ? nullptr : std::move(ends_.extract(found).mapped());
  }

 private:
  void Run() {
    MutexLock lock(&mu_);
    for (const auto& [owner, end] : std::exchange(ends_, {})) kept_.push_back(end());
  }

  Mutex mu_;
  std::map<const void*, End> ends_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<const void>> kept_ ABSL_GUARDED_BY(mu_);
};

// Whether calls to `target` stay within this machine.
bool IsLocal(const std::string& target) {
  if (absl::StartsWith(target, "unix:") || absl::StartsWith(target, "unix-abstract:")) return true;
  const absl::StatusOr<HostPort> address = ParseHostPort(target);
  return address.ok() && IsLoopback(address->host);
}

// gRPC takes call credentials, and a processor of calls, on a port or channel that is not encrypted only by way of its
// xDS credentials: without an xDS control plane they are what they fall back to.
std::shared_ptr<grpc::ChannelCredentials> PlainChannelCredentials() {
  return grpc::XdsCredentials(grpc::InsecureChannelCredentials());
}
std::shared_ptr<grpc::ServerCredentials> PlainServerCredentials(Authorizer authorize,
                                                                std::shared_ptr<const void> owner) {
  auto credentials = grpc::XdsServerCredentials(grpc::InsecureServerCredentials());
  credentials->SetAuthMetadataProcessor(std::make_shared<AuthProcessor>(std::move(authorize), std::move(owner)));
  return credentials;
}

}  // namespace

Credentials::Credentials(const v1::SecurityConfig& security) : security_(security) { grpc_init(); }

Credentials::~Credentials() {
  if (const AtExit::End end = AtExit::Get().Take(this)) end();
  watcher_.reset();
  grpc_shutdown();
}

absl::StatusOr<CredentialsRef> Credentials::Make(const v1::SecurityConfig& security, absl::string_view section) {
  for (const ConfigProblem& problem : CheckSecurity(security)) {
    return absl::InvalidArgumentError(absl::StrCat(problem.path, ": ", problem.what));
  }
  if (security.certificate().empty() && security.authorities().empty() && security.token().empty()) return nullptr;
  std::shared_ptr<Credentials> credentials(new Credentials(security));
  LODESTONE_RETURN_IF_ERROR(credentials->Open(section));
  return credentials;
}

absl::Status Credentials::Open(absl::string_view section) {
  WarnOfReaders();
  if (!security_.token().empty()) {
    auto token = TokenFile::Open(security_.token(), security_.reload_ms(), &time_);
    if (!token.ok()) return Annotate(token.status(), absl::StrCat(section, ".token"));
    token_ = *std::move(token);
  }
  if (!calls_by_tls()) return absl::OkStatus();
  // gRPC does not check what the files hold, and without certificates in them every handshake fails: it reads checked
  // copies.
  LODESTONE_ASSIGN_OR_RETURN(certificates_, CertificateFiles::Open(security_, &time_, section));
  watcher_ = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      certificates_->key_path(), certificates_->certificate_path(), certificates_->authorities_path(),
      /*refresh_interval_sec=*/1);
  reloads_ = std::thread([this] { RunReloads(); });
  AtExit::Get().Add(this, [this] {
    {
      MutexLock lock(&mu_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    reloads_.join();
    return certificates_;
  });
  return absl::OkStatus();
}

void Credentials::RunReloads() {
  const std::chrono::milliseconds period(security_.reload_ms());
  auto next = std::chrono::steady_clock::now() + period;
  MutexLock lock(&mu_);
  while (!stopping_) {
    if (changed_.WaitUntil(&mu_, next)) continue;
    mu_.Unlock();
    certificates_->Newest();
    mu_.Lock();
    next = std::chrono::steady_clock::now() + period;
  }
}

void Credentials::WarnOfReaders() const {
  for (const std::string& path : {security_.key(), security_.token()}) {
    if (path.empty() || !IsReadableByAll(path)) continue;
    LODESTONE_LOG(WARN, "security",
                  "any user of this machine can read a secret; take its read permission from others file={}", path);
  }
}

std::shared_ptr<grpc::Channel> Credentials::Channel(const std::string& target,
                                                    const grpc::ChannelArguments& settings) const {
  if (token_ != nullptr && !calls_by_tls() && !IsLocal(target)) {
    return RefusingChannel(target, absl::UnauthenticatedError(absl::StrCat(
                                       "the token is not shown to ", target,
                                       " without encryption, where others on the network could read it: set "
                                       "security.authorities")));
  }
  std::shared_ptr<grpc::ChannelCredentials> connection;
  if (calls_by_tls()) {
    grpc::experimental::TlsChannelCredentialsOptions options;
    options.set_certificate_provider(watcher_);
    options.watch_root_certs();
    if (serves_by_tls()) options.watch_identity_key_cert_pairs();  // For servers that ask for client certificates.
    options.set_verify_server_certs(true);
    options.set_check_call_host(true);
    connection = grpc::experimental::TlsCredentials(options);
  } else {
    connection = PlainChannelCredentials();
  }
  const auto calls = grpc::experimental::MetadataCredentialsFromPlugin(
      std::make_unique<TokenPlugin>(token_, shared_from_this()),
      calls_by_tls() ? GRPC_PRIVACY_AND_INTEGRITY : GRPC_SECURITY_NONE);
  return grpc::CreateCustomChannel(target, grpc::CompositeChannelCredentials(connection, calls), settings);
}

std::shared_ptr<grpc::ServerCredentials> Credentials::Server(Authorizer authorize) const {
  if (!serves_by_tls()) return PlainServerCredentials(std::move(authorize), shared_from_this());
  grpc::experimental::TlsServerCredentialsOptions options(watcher_);
  options.watch_identity_key_cert_pairs();
  if (asks_clients()) {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  auto credentials = grpc::experimental::TlsServerCredentials(options);
  credentials->SetAuthMetadataProcessor(std::make_shared<AuthProcessor>(std::move(authorize), shared_from_this()));
  return credentials;
}

std::shared_ptr<grpc::Channel> ChannelWith(const CredentialsRef& credentials, const std::string& target,
                                           const grpc::ChannelArguments& settings) {
  if (credentials != nullptr) return credentials->Channel(target, settings);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), settings);
}

std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(const CredentialsRef& credentials, Authorizer authorize) {
  if (credentials != nullptr) return credentials->Server(std::move(authorize));
  if (authorize == nullptr) return grpc::InsecureServerCredentials();
  return PlainServerCredentials(std::move(authorize), nullptr);
}

}  // namespace lodestone
