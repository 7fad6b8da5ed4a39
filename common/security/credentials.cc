#include "common/security/credentials.h"

#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/config/config_check.h"
#include "common/security/core_credentials.h"
#include "common/security/secret_file.h"
#include "common/telemetry/log.h"
#include "grpc/grpc.h"
#include "grpcpp/security/tls_credentials_options.h"

namespace lodestone {
namespace {

// What ends the reading of certificates, at the latest before OpenSSL cleans up as the process exits: gRPC lets go of
// channels, and so of their Credentials, on threads of its own, perhaps later than that.
class AtExit {
 public:
  // What it returns lives for ever if the process exits.
  using End = std::function<std::shared_ptr<const void>()>;

  static AtExit& Get() {
    // After OpenSSL has had itself called, which makes this come first.
    static auto* const at_exit = [] {
      std::atexit([] { Get().Run(); });
      return new AtExit;
    }();
    return *at_exit;
  }
  // Has `end` called as the process exits, unless it is taken back before.
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

}  // namespace

Credentials::Credentials(const v1::SecurityConfig& security) : security_(security) { grpc_init(); }

Credentials::~Credentials() {
  if (const AtExit::End end = AtExit::Get().Take(this)) end();
  watcher_.reset();
  grpc_shutdown();
}

absl::StatusOr<CredentialsRef> Credentials::Make(const v1::SecurityConfig& security) {
  for (const ConfigProblem& problem : CheckSecurity(security)) {
    return absl::InvalidArgumentError(absl::StrCat(problem.path, ": ", problem.what));
  }
  if (security.certificate().empty() && security.authorities().empty() && security.token().empty()) return nullptr;
  std::shared_ptr<Credentials> credentials(new Credentials(security));
  LODESTONE_RETURN_IF_ERROR(credentials->Open());
  return credentials;
}

absl::Status Credentials::Open() {
  WarnOfReaders();
  if (!security_.token().empty()) {
    auto token = TokenFile::Open(security_.token(), security_.reload_ms(), &time_);
    if (!token.ok()) return Annotate(token.status(), "security.token");
    token_ = *std::move(token);
  }
  if (!calls_by_tls()) return absl::OkStatus();
  // gRPC would take whatever the files hold, and with something else than certificates in them no handshake succeeds:
  // it gets what was checked.
  LODESTONE_ASSIGN_OR_RETURN(certificates_, CertificateFiles::Open(security_, &time_));
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
    LODESTONE_LOG(WARN, "security", "everybody on this machine can read a secret file={}", path);
  }
}

std::shared_ptr<grpc::ChannelCredentials> Credentials::channel() const {
  const auto make = [this] {
    if (!calls_by_tls()) return grpc_insecure_credentials_create();
    grpc::experimental::TlsChannelCredentialsOptions options;
    options.set_certificate_provider(watcher_);
    options.watch_root_certs();
    if (serves_by_tls()) options.watch_identity_key_cert_pairs();  // For servers that ask who calls.
    options.set_verify_server_certs(true);
    options.set_check_call_host(true);
    return grpc_tls_credentials_create(options.c_credentials_options());
  };
  return std::make_shared<CoreChannelCredentials>(make, calls_by_tls(), token_, shared_from_this());
}

std::shared_ptr<grpc::ServerCredentials> Credentials::server(Door door) const {
  const auto make = [this] {
    if (!serves_by_tls()) return grpc_insecure_server_credentials_create();
    grpc::experimental::TlsServerCredentialsOptions options(watcher_);
    options.watch_identity_key_cert_pairs();
    if (asks_clients()) {
      options.watch_root_certs();
      options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    }
    return grpc_tls_server_credentials_create(options.c_credentials_options());
  };
  return std::make_shared<CoreServerCredentials>(make, std::move(door), shared_from_this());
}

std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(const CredentialsRef& credentials) {
  return credentials == nullptr ? grpc::InsecureChannelCredentials() : credentials->channel();
}

std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(const CredentialsRef& credentials,
                                                             Credentials::Door door) {
  if (credentials != nullptr) return credentials->server(std::move(door));
  if (door == nullptr) return grpc::InsecureServerCredentials();
  return std::make_shared<CoreServerCredentials>([] { return grpc_insecure_server_credentials_create(); },
                                                 std::move(door), nullptr);
}

}  // namespace lodestone
