#include "common/rpc/etcd_client.h"

#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/config/config_check.h"
#include "common/rpc/grpc_status.h"
#include "common/security/credentials.h"

namespace lodestone {
namespace {

// Reconnection is left to our own retries.
constexpr int kEtcdReconnectMsMin = 50;
constexpr int kEtcdReconnectMsMax = 500;

// No keepalive: etcd takes the pings of a connection without calls for an attack, and every call has a deadline.
grpc::ChannelArguments EtcdChannelSettings() {
  grpc::ChannelArguments settings;
  settings.SetMaxReceiveMessageSize(-1);
  settings.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kEtcdReconnectMsMin);
  settings.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kEtcdReconnectMsMax);
  settings.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  settings.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  settings.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return settings;
}

// Whether another endpoint may answer better.
bool IsOfEndpoint(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsUnimplemented(status);
}

// What may be wrong where an endpoint was reached and then ended the connection before it said anything, as gRPC puts
// it.
const char* TlsHint(const absl::Status& status, const CredentialsRef& credentials) {
  const bool ended = absl::StrContains(status.message(), "failed to connect to all addresses") &&
                     !absl::StrContains(status.message(), "Failed to connect to remote host");
  if (!absl::IsUnavailable(status) || !ended) return "";
  if (credentials == nullptr)
    return "; the connection is plain: if etcd expects TLS, set coordinator.etcd_tls.authorities";
  if (!credentials->serves_by_tls()) {
    return "; its certificate must be of that host and of coordinator.etcd_tls.authorities; if it asks for one, set "
           "coordinator.etcd_tls.certificate";
  }
  return "; its certificate must be of that host and of coordinator.etcd_tls.authorities, and "
         "coordinator.etcd_tls.certificate of an authority that it believes";
}

EtcdClient::Value ToValue(const mvccpb::KeyValue& kv) {
  return {kv.value(), kv.create_revision(), kv.mod_revision(), kv.lease()};
}

std::optional<EtcdClient::Value> ToValue(const etcdserverpb::RangeResponse& range) {
  if (range.kvs().empty()) return std::nullopt;
  return ToValue(range.kvs(0));
}

etcdserverpb::Compare ToCompare(const EtcdClient::Condition& condition) {
  etcdserverpb::Compare compare;
  compare.set_key(condition.key);
  switch (condition.what) {
    case EtcdClient::Condition::What::kCreated:
      compare.set_target(etcdserverpb::Compare::CREATE);
      compare.set_create_revision(condition.revision);
      break;
    case EtcdClient::Condition::What::kModified:
      compare.set_target(etcdserverpb::Compare::MOD);
      compare.set_mod_revision(condition.revision);
      break;
  }
  return compare;
}

}  // namespace

EtcdClient::Stubs::Stubs(const std::string& endpoint, const CredentialsRef& credentials)
    : channel(ChannelWith(credentials, endpoint, EtcdChannelSettings())),
      kv(etcdserverpb::KV::NewStub(channel)),
      lease(etcdserverpb::Lease::NewStub(channel)) {}

EtcdClient::EtcdClient(std::vector<std::string> endpoints, int64_t timeout_ms, CredentialsRef credentials)
    : endpoints_(std::move(endpoints)),
      timeout_ms_(timeout_ms),
      credentials_(std::move(credentials)),
      stubs_(endpoints_.size()) {
  LODESTONE_CHECK(!endpoints_.empty());
}

absl::Status EtcdClient::Call(const Attempt& attempt, int* attempts) {
  size_t first = 0;
  {
    MutexLock lock(&mu_);
    first = current_;
  }
  std::vector<std::string> errors;
  std::optional<absl::StatusCode> code;  // That all attempts end with, else UNAVAILABLE.
  for (size_t i = 0; i < endpoints_.size(); ++i) {
    const size_t endpoint = (first + i) % endpoints_.size();
    if (attempts != nullptr) ++*attempts;
    const absl::Status status = CallOne(endpoint, attempt);
    MutexLock lock(&mu_);
    if (stopped_ && !status.ok()) return absl::CancelledError("the client of etcd ends");
    if (!IsOfEndpoint(status)) {
      current_ = endpoint;
      return Annotate(status, absl::StrCat("etcd ", endpoints_[endpoint]));
    }
    code = code.value_or(status.code()) == status.code() ? status.code() : absl::StatusCode::kUnavailable;
    errors.push_back(absl::StrCat(
        "etcd ", endpoints_[endpoint], ": ",
        absl::IsUnimplemented(status) ? "what listens there is not etcd, version 3 of its API" : status.message(),
        TlsHint(status, credentials_)));
    current_ = (endpoint + 1) % endpoints_.size();
  }
  return absl::Status(*code, absl::StrJoin(errors, "; "));
}

absl::Status EtcdClient::CallOne(size_t endpoint, const Attempt& attempt) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(timeout_ms_));
  std::shared_ptr<Stubs> stubs;
  {
    MutexLock lock(&mu_);
    if (stopped_) return absl::CancelledError("the client of etcd ends");
    if (stubs_[endpoint] == nullptr) stubs_[endpoint] = std::make_shared<Stubs>(endpoints_[endpoint], credentials_);
    stubs = stubs_[endpoint];
    under_way_.insert(&context);
  }
  const absl::Status status = FromCall(attempt(stubs.get(), &context));
  {
    MutexLock lock(&mu_);
    under_way_.erase(&context);
  }
  if (IsOfEndpoint(status)) Forget(endpoint, stubs.get());
  if (!absl::IsDeadlineExceeded(status)) return status;
  return absl::DeadlineExceededError(absl::StrCat("no answer within ", timeout_ms_, " ms"));
}

void EtcdClient::Forget(size_t endpoint, const Stubs* stubs) {
  MutexLock lock(&mu_);
  if (stubs_[endpoint].get() == stubs) stubs_[endpoint] = nullptr;
}

absl::StatusOr<std::optional<EtcdClient::Value>> EtcdClient::Get(const std::string& key) {
  etcdserverpb::RangeRequest request;
  request.set_key(key);
  etcdserverpb::RangeResponse response;
  LODESTONE_RETURN_IF_ERROR(
      Call([&](Stubs* stubs, grpc::ClientContext* context) { return stubs->kv->Range(context, request, &response); }));
  return ToValue(response);
}

absl::StatusOr<EtcdClient::PutOutcome> EtcdClient::PutIf(const std::vector<Condition>& conditions,
                                                         const std::string& key, const std::string& value,
                                                         int64_t lease) {
  etcdserverpb::TxnRequest request;
  etcdserverpb::PutRequest* const put = request.add_success()->mutable_request_put();
  put->set_key(key);
  put->set_value(value);
  put->set_lease(lease);
  for (const Condition& condition : conditions) {
    *request.add_compare() = ToCompare(condition);
    request.add_failure()->mutable_request_range()->set_key(condition.key);
  }
  etcdserverpb::TxnResponse response;
  int attempts = 0;
  LODESTONE_RETURN_IF_ERROR(
      Call([&](Stubs* stubs, grpc::ClientContext* context) { return stubs->kv->Txn(context, request, &response); },
           &attempts));
  PutOutcome outcome;
  outcome.done = response.succeeded();
  outcome.repeated = attempts > 1;
  if (outcome.done) {
    outcome.revision = response.header().revision();
    return outcome;
  }
  if (response.responses_size() != static_cast<int>(conditions.size())) {
    return absl::InternalError(
        absl::StrCat("etcd answered ", response.responses_size(), " of ", conditions.size(), " questions about ", key));
  }
  for (const etcdserverpb::ResponseOp& found : response.responses()) {
    outcome.found.push_back(ToValue(found.response_range()));
  }
  return outcome;
}

absl::StatusOr<EtcdClient::Lease> EtcdClient::Grant(int64_t seconds) {
  etcdserverpb::LeaseGrantRequest request;
  request.set_ttl(seconds);
  etcdserverpb::LeaseGrantResponse response;
  LODESTONE_RETURN_IF_ERROR(Call([&](Stubs* stubs, grpc::ClientContext* context) {
    return stubs->lease->LeaseGrant(context, request, &response);
  }));
  if (!response.error().empty() || response.id() == 0 || response.ttl() <= 0) {
    return absl::InternalError(absl::StrCat("etcd granted no lease: ", response.error()));
  }
  return Lease{response.id(), response.ttl()};
}

absl::StatusOr<int64_t> EtcdClient::KeepAlive(int64_t lease) {
  etcdserverpb::LeaseKeepAliveRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseKeepAliveResponse response;
  LODESTONE_RETURN_IF_ERROR(Call([&](Stubs* stubs, grpc::ClientContext* context) {
    const auto stream = stubs->lease->LeaseKeepAlive(context);
    // Whether it could be written shows in the answer. The calls of a stream that has failed do nothing.
    stream->Write(request);
    stream->WritesDone();
    const bool answered = stream->Read(&response);
    if (answered) context->TryCancel();  // There is no more to hear.
    const grpc::Status status = stream->Finish();
    if (answered) return grpc::Status::OK;
    return status.ok() ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "it has ended the stream") : status;
  }));
  if (response.ttl() <= 0) return absl::NotFoundError(absl::StrCat("etcd: the lease ", lease, " has ended"));
  return response.ttl();
}

absl::Status EtcdClient::Revoke(int64_t lease) {
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseRevokeResponse response;
  return Call([&](Stubs* stubs, grpc::ClientContext* context) {
    return stubs->lease->LeaseRevoke(context, request, &response);
  });
}

void EtcdClient::Stop() {
  MutexLock lock(&mu_);
  stopped_ = true;
  for (grpc::ClientContext* const context : under_way_) context->TryCancel();
}

absl::StatusOr<CredentialsRef> EtcdCredentials(const v1::CoordinatorConfig& coordinator) {
  const v1::EtcdTlsConfig& tls = coordinator.etcd_tls();
  for (const ConfigProblem& problem : CheckEtcdTls(tls)) {
    return absl::InvalidArgumentError(absl::StrCat(problem.path, ": ", problem.what));
  }
  v1::SecurityConfig files;
  if (tls.has_authorities()) files.set_authorities(tls.authorities());
  if (tls.has_certificate()) files.set_certificate(tls.certificate());
  if (tls.has_key()) files.set_key(tls.key());
  return Credentials::Make(files, "coordinator.etcd_tls");
}

std::string EtcdCoordinatorKey(absl::string_view cluster) {
  return absl::StrCat("lodestone/", cluster, "/coordinator");
}

std::string EtcdStateKey(absl::string_view cluster) { return absl::StrCat("lodestone/", cluster, "/state"); }

}  // namespace lodestone
