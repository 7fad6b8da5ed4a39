#include "tools/psctl/serving/prediction_server.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/http/monitoring.h"
#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/server_builder.h"
#include "proto/serving.grpc.pb.h"
#include "tools/psctl/serving/prediction_json.h"

namespace lodestone::psctl {
namespace {

constexpr char kJsonType[] = "application/json";
constexpr int kThreadsMax = 2 * static_cast<int>(limits::kPredictRequestsMax);

void AddMetrics(const ParameterSource& source, MetricFamilies* to) {
  to->Add("lodestone_serve_ready", "Whether it is ready, as /readyz says.", MetricFamilies::Type::kGauge,
          source.Health().ok());
}

}  // namespace

// The service of proto/serving.proto. Each call is answered on a thread of gRPC's own.
class PredictionServer::Rpc final : public v1::Predictor::Service {
 public:
  explicit Rpc(PredictionService* service) : service_(service) {}

  grpc::Status Predict(grpc::ServerContext*, const v1::PredictRequest* request,
                       v1::PredictResponse* response) override {
    absl::StatusOr<v1::PredictResponse> answer = service_->Predict(*request);
    if (!answer.ok()) return ToGrpc(answer.status());
    *response = *std::move(answer);
    return grpc::Status::OK;
  }

 private:
  PredictionService* const service_;
};

PredictionServer::PredictionServer() = default;
PredictionServer::~PredictionServer() { Stop(); }

absl::StatusOr<std::unique_ptr<PredictionServer>> PredictionServer::Start(ParameterSource* source,
                                                                          const Options& options) {
  std::unique_ptr<PredictionServer> server(new PredictionServer);
  LODESTONE_ASSIGN_OR_RETURN(server->service_, PredictionService::Create(source));
  LODESTONE_RETURN_IF_ERROR(server->Listen(options));
  if (!options.http_listen.empty()) LODESTONE_RETURN_IF_ERROR(server->ListenHttp(options));
  return server;
}

absl::Status PredictionServer::Listen(const Options& options) {
  rpc_ = std::make_unique<Rpc>(service_.get());
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(options.listen, ServerCredentialsOf(options.credentials, nullptr), &port);
  ApplyServerSettings(&builder, limits::kPredictBytesMax);
  builder.SetResourceQuota(grpc::ResourceQuota("predictor").SetMaxThreads(kThreadsMax));
  builder.RegisterService(rpc_.get());
  server_ = builder.BuildAndStart();
  if (server_ == nullptr || port == 0) {
    server_.reset();
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", options.listen, "; is the port taken? --listen names another"));
  }
  port_ = static_cast<uint16_t>(port);
  return absl::OkStatus();
}

absl::Status PredictionServer::ListenHttp(const Options& options) {
  HttpServer::Posts posts;
  posts.body_bytes_max = limits::kPredictBytesMax;
  posts.paths["/predict"] = [this](const HttpRequest& request) { return Answer(request); };
  const ParameterSource& source = service_->source();
  LODESTONE_ASSIGN_OR_RETURN(
      http_, HttpServer::Start(options.http_listen,
                               MonitoringPaths([&source](MetricFamilies* to) { AddMetrics(source, to); },
                                               [&source] { return source.Health(); }),
                               std::move(posts), HttpSecurityOf(options.credentials)));
  return absl::OkStatus();
}

HttpResponse PredictionServer::Answer(const HttpRequest& request) {
  const auto failed = [](const absl::Status& status) {
    return HttpResponse{.code = HttpCodeOf(status), .content_type = kJsonType, .body = JsonOf(status)};
  };
  const absl::StatusOr<v1::PredictRequest> parsed = PredictRequestOf(request.body);
  if (!parsed.ok()) return failed(parsed.status());
  const absl::StatusOr<v1::PredictResponse> response = service_->Predict(*parsed);
  if (!response.ok()) return failed(response.status());
  return {.content_type = kJsonType, .body = JsonOf(*response)};
}

void PredictionServer::Stop() {
  if (http_ != nullptr) http_->Stop();
  if (server_ != nullptr) {
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(limits::kShutdownGraceMs));
  }
}

}  // namespace lodestone::psctl
