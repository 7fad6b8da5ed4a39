// The ports at which a model is served: gRPC (proto/serving.proto, with health and reflection), and HTTP.
//
//   POST /predict   predictions, as JSON (prediction_json.h)
//   GET  /healthz   200 while the process lives
//   GET  /readyz    200 once requests are taken; 503 after a cluster has refused to be read for ever
//   GET  /metrics   requests, their durations, the process, for Prometheus
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/http/http_server.h"
#include "common/security/credentials.h"
#include "grpcpp/server.h"
#include "tools/psctl/model/parameter_source.h"
#include "tools/psctl/serving/prediction_service.h"

namespace lodestone::psctl {

class PredictionServer {
 public:
  struct Options {
    std::string listen;          // host:port; port 0: a free one.
    std::string http_listen;     // The same for HTTP; empty: there is none.
    CredentialsRef credentials;  // TLS of both ports, if there is a certificate; null: without.
  };
  // Serves at once. `source` must outlive this. UNAVAILABLE if a port cannot be bound.
  static absl::StatusOr<std::unique_ptr<PredictionServer>> Start(ParameterSource* source, const Options& options);
  // Stops if Stop was not called.
  ~PredictionServer();
  PredictionServer(const PredictionServer&) = delete;
  PredictionServer& operator=(const PredictionServer&) = delete;

  uint16_t port() const { return port_; }
  uint16_t http_port() const { return http_ == nullptr ? 0 : http_->port(); }  // 0: there is none.

  // Takes no more requests, and lets those under way end within limits::kShutdownGraceMs. Once.
  void Stop();

 private:
  class Rpc;
  PredictionServer();
  absl::Status Listen(const Options& options);
  absl::Status ListenHttp(const Options& options);
  HttpResponse Answer(const HttpRequest& request);

  // Constant after Start. Synchronise themselves.
  std::unique_ptr<PredictionService> service_;
  std::unique_ptr<Rpc> rpc_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<HttpServer> http_;
  uint16_t port_ = 0;
};

}  // namespace lodestone::psctl
