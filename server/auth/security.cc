#include "server/auth/security.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/host_port.h"
#include "common/base/status.h"
#include "common/http/monitoring.h"
#include "common/telemetry/log.h"
#include "grpcpp/support/client_interceptor.h"

namespace lodestone::server {
namespace {

bool ListensBeyondLoopback(const std::string& listen) {
  if (listen.empty()) return false;
  const absl::StatusOr<HostPort> address = ParseHostPort(listen);
  return address.ok() && !IsLoopback(address->host);
}

// Adds a token to each call of a channel that has no credentials.
class TokenAdder final : public grpc::experimental::Interceptor {
 public:
  explicit TokenAdder(const std::string& token) : value_(absl::StrCat("Bearer ", token)) {}
  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(grpc::experimental::InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace(kAuthorizationKey, value_);
    }
    methods->Proceed();
  }

 private:
  const std::string value_;
};

class TokenAdders final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit TokenAdders(std::string token) : token_(std::move(token)) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(grpc::experimental::ClientRpcInfo*) override {
    return new TokenAdder(token_);
  }

 private:
  const std::string token_;
};

}  // namespace

bool IsOpen(const v1::Config& config) {
  const v1::SecurityConfig& security = config.security();
  return !security.client_certificates() && security.identities().empty();
}

std::string OpenWarning(const v1::Config& config) {
  std::vector<std::string> beyond;
  if (ListensBeyondLoopback(config.server().listen())) {
    beyond.push_back(absl::StrCat("server.listen ", config.server().listen()));
  }
  if (ListensBeyondLoopback(config.server().http_listen())) {
    beyond.push_back(absl::StrCat("server.http_listen ", config.server().http_listen()));
  }
  if (beyond.empty()) return "";
  if (IsOpen(config)) {
    return absl::StrCat("open to any caller that can connect to ", absl::StrJoin(beyond, " and "),
                        ": set security.identities (or security.client_certificates), or listen on loopback");
  }
  if (!config.security().certificate().empty()) return "";
  return absl::StrCat("without encryption at ", absl::StrJoin(beyond, " and "),
                      ", so that others on the network can read tokens: set security.certificate");
}

absl::StatusOr<std::unique_ptr<Security>> Security::Open(const v1::Config& config) {
  std::unique_ptr<Security> security(new Security(config));
  LODESTONE_RETURN_IF_ERROR(security->OpenAll());
  security->reloads_ = std::thread([raw = security.get()] { raw->RunReloads(); });
  return security;
}

absl::Status Security::OpenAll() {
  const v1::SecurityConfig& security = config_.security();
  LODESTONE_ASSIGN_OR_RETURN(credentials_, Credentials::Make(security));
  if (security.open() != v1::SecurityConfig::ALLOW) open_warning_ = OpenWarning(config_);
  if (!open_warning_.empty() && security.open() == v1::SecurityConfig::REFUSE && IsOpen(config_)) {
    return absl::FailedPreconditionError(
        absl::StrCat("security.open is refuse, and this ps would be ", open_warning_, "; or set security.open: warn"));
  }
  if (!open_warning_.empty()) LODESTONE_LOG(WARN, "security", "{}", open_warning_);
  LODESTONE_ASSIGN_OR_RETURN(audit_, Audit::Open(security.audit_log(), &time_));
  return security.identities().empty() ? absl::OkStatus() : OpenIdentities();
}

absl::Status Security::OpenIdentities() {
  const v1::SecurityConfig& security = config_.security();
  identities_.emplace(security.identities());
  if (const auto read = identities_->Refresh(); !read.ok()) return Annotate(read.status(), "security.identities");
  LODESTONE_ASSIGN_OR_RETURN(auto identities, ParseIdentities());
  LODESTONE_LOG(INFO, "security", "only identities of the file may call file={} count={}", security.identities(),
                identities->all().size());
  Access::Dependencies dependencies;
  dependencies.tables = &tables_;
  dependencies.time = &time_;
  dependencies.audit = audit_.get();
  dependencies.timer = &timer_;
  access_.emplace(std::move(identities), std::move(dependencies));
  return absl::OkStatus();
}

Security::~Security() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (reloads_.joinable()) reloads_.join();
}

void Security::RunReloads() {
  const std::chrono::milliseconds period(config_.security().reload_ms());
  auto next = std::chrono::steady_clock::now() + period;
  MutexLock lock(&mu_);
  while (!stopping_) {
    if (changed_.WaitUntil(&mu_, next)) continue;
    mu_.Unlock();
    Reload();
    mu_.Lock();
    next = std::chrono::steady_clock::now() + period;
  }
}

void Security::Reload() {
  MutexLock lock(&reload_mu_);
  if (access_.has_value()) {
    ReloadIdentities();
    access_->CheckStreams();
  }
  audit_->CheckTime();
}

absl::StatusOr<std::shared_ptr<const Identities>> Security::ParseIdentities() const {
  const std::string& content = identities_->content();
  auto parsed = Identities::Parse(content, identities_->path(), config_.security().client_certificates());
  const bool is_json = absl::StartsWith(content, "{");  // A part of that is no JSON.
  if (!parsed.ok() || absl::EndsWith(content, "\n") || is_json) return parsed;
  return absl::InvalidArgumentError(
      absl::StrCat(identities_->path(), ":", std::count(content.begin(), content.end(), '\n') + 1,
                   ": the last line does not end, as if the file were cut off here; end it with a newline"));
}

void Security::ReloadIdentities() {
  const absl::StatusOr<bool> read = identities_->Refresh();
  absl::Status status = read.status();
  if (read.ok()) {
    if (*read) {
      unjudged_ = true;
      return;
    }
    if (!std::exchange(unjudged_, false) && !read_failed_) return;
    auto fresh = ParseIdentities();
    status = fresh.status();
    if (fresh.ok()) {
      LODESTONE_LOG(INFO, "security", "the identities have changed file={} count={}", identities_->path(),
                    (*fresh)->all().size());
      access_->Replace(*std::move(fresh));
    }
  }
  read_failed_ = !read.ok();
  const std::string problem = status.ok() ? "" : std::string(status.message());
  MutexLock lock(&mu_);
  if (!problem.empty() && problem != identities_problem_) {
    LODESTONE_LOG(ERROR, "security", "the file of identities cannot be used, the previous identities remain: {}",
                  problem);
  }
  identities_problem_ = problem;
}

std::shared_ptr<grpc::ServerCredentials> Security::port() {
  Authorizer authorize;
  if (access_.has_value()) authorize = [this](const IncomingCall& call) { return access_->Admit(call); };
  return ServerCredentialsOf(credentials_, std::move(authorize));
}

HttpServer::Security Security::http() {
  HttpServer::Security http = HttpSecurityOf(credentials_);
  if (!access_.has_value()) return http;
  http.check = [this](const HttpRequest& request) {
    IncomingCall call;
    call.method = absl::StrCat("HTTP ", request.path);
    if (!request.token.empty()) call.authorization.push_back(absl::StrCat("Bearer ", request.token));
    call.certificate_names = request.certificate_names;
    call.peer = request.peer;
    return access_->CheckHttp(call);
  };
  return http;
}

std::shared_ptr<grpc::Channel> Security::OwnChannel(grpc::Server* server, const grpc::ChannelArguments& settings) {
  if (!access_.has_value()) return server->InProcessChannel(settings);
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> adders;
  adders.push_back(std::make_unique<TokenAdders>(access_->own_token()));
  return server->experimental().InProcessChannelWithInterceptors(settings, std::move(adders));
}

void Security::FillStatus(v1::StatusResponse* status) const {
  std::vector<std::string> warnings;
  if (!open_warning_.empty()) warnings.push_back(open_warning_);
  if (credentials_ != nullptr) warnings.push_back(credentials_->Warning());
  if (const absl::Status health = audit_->health(); !health.ok()) warnings.emplace_back(health.message());
  {
    MutexLock lock(&mu_);
    warnings.push_back(identities_problem_);
  }
  std::erase(warnings, "");
  status->mutable_server()->set_security_warning(absl::StrJoin(warnings, "; "));
  if (access_.has_value()) access_->FillStatus(status);
}

}  // namespace lodestone::server
