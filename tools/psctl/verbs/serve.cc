#include "tools/psctl/verbs/serve.h"

#include <signal.h>

#include <cstdio>
#include <memory>

#include "CLI/App.hpp"
#include "absl/strings/str_cat.h"
#include "common/base/host_port.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"
#include "tools/psctl/client/client_security.h"
#include "tools/psctl/serving/prediction_server.h"
#include "tools/psctl/text/exit_code.h"
#include "tools/psctl/text/message_json.h"
#include "tools/psctl/verbs/flags.h"

namespace lodestone::psctl {
namespace {

constexpr char kServe[] = "serve";

// The signals that end it. Blocked, for this thread and those that it starts, while this lives.
class EndSignals {
 public:
  EndSignals() {
    sigemptyset(&signals_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals_, signal);
    pthread_sigmask(SIG_BLOCK, &signals_, &former_);
  }
  ~EndSignals() { pthread_sigmask(SIG_SETMASK, &former_, nullptr); }
  void Await() {
    int signal = 0;
    sigwait(&signals_, &signal);
  }

 private:
  sigset_t signals_;
  sigset_t former_;
};

// "127.0.0.1:7500".
std::string PlaceOf(const std::string& listen, uint16_t port) {
  const absl::StatusOr<HostPort> wanted = ParseHostPort(listen);
  return FormatHostPort({wanted.ok() ? wanted->host : "", port});
}

absl::Status CheckListen(const char* flag, const std::string& listen) {
  return Annotate(ParseHostPort(listen).status(), flag);
}

// Says who may ask, where that is anyone who reaches the port.
void WarnOfOpenPorts(const ServeOptions& options) {
  if (UsedCredentials() != nullptr && UsedCredentials()->asks_clients()) return;
  for (const std::string& listen : {options.listen, options.http_listen}) {
    const absl::StatusOr<HostPort> place = ParseHostPort(listen);
    if (listen.empty() || !place.ok() || IsLoopback(place->host)) continue;
    Complain(kServe, absl::StrCat("whatever reaches ", listen,
                                  " may ask for predictions; security.client_certificates would ask for certificates"));
  }
}

absl::Status Serve(const ServeOptions& options) {
  EndSignals signals;
  ModelOptions model = options.model;
  model.follow = true;
  model.pull_timeout_ms = limits::kPredictPullTimeoutMs;
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<ParameterSource> source, OpenModel(model));
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<PredictionServer> server,
                             PredictionServer::Start(source.get(), {.listen = options.listen,
                                                                    .http_listen = options.http_listen,
                                                                    .credentials = UsedCredentials()}));
  WarnOfOpenPorts(options);
  const std::string grpc = PlaceOf(options.listen, server->port());
  nlohmann::ordered_json json = {{"model", source->name()}, {"grpc", grpc}};
  std::string text = absl::StrCat("serves ", source->name(), " at ", grpc, " (gRPC)");
  if (!options.http_listen.empty()) {
    const bool tls = UsedCredentials() != nullptr && UsedCredentials()->serves_by_tls();
    const std::string url =
        absl::StrCat(tls ? "https" : "http", "://", PlaceOf(options.http_listen, server->http_port()), "/predict");
    absl::StrAppend(&text, " and ", url);
    json["http"] = url;
  }
  std::fputs(options.json ? JsonLine(json).c_str() : (text + "\n").c_str(), stdout);
  std::fflush(stdout);
  signals.Await();
  server->Stop();
  return absl::OkStatus();
}

}  // namespace

int RunServe(const ServeOptions& options) {
  absl::Status usage = CheckListen("--listen", options.listen);
  if (!options.http_listen.empty()) usage.Update(CheckListen("--http-listen", options.http_listen));
  if (!usage.ok()) return FailUsage(kServe, usage.message());
  const absl::Status status = Serve(options);
  return status.ok() ? kExitDone : Fail(kServe, status);
}

const Verb kServeVerb = {
    "serve", "Answers requests with what a trained model says of their samples, by gRPC and by JSON over HTTP",
    "  psctl serve model.safetensors --http-listen 127.0.0.1:7501\n"
    "  psctl serve 10.0.0.1:7000 --listen 0.0.0.0:7500                    what a running cluster has learned by then\n",
    [](CLI::App* command) -> Verb::Run {
      const auto options = std::make_shared<ServeOptions>();
      AddModel(command, &options->model);
      command->add_option("--listen", options->listen, "Where gRPC requests are taken; port 0: a free one")
          ->type_name("HOST:PORT")
          ->capture_default_str();
      command
          ->add_option("--http-listen", options->http_listen,
                       "Where POST /predict, /healthz, /readyz and /metrics are served")
          ->type_name("HOST:PORT");
      AddJson(command, &options->json, "Prints where it serves as JSON");
      return [options] { return RunServe(*options); };
    }};

}  // namespace lodestone::psctl
