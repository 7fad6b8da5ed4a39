#include "tools/psctl/verbs/health.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/time_source.h"
#include "common/telemetry/readiness.h"
#include "grpcpp/client_context.h"
#include "proto/admin.pb.h"
#include "proto/health.grpc.pb.h"
#include "tools/psctl/client/admin_client.h"
#include "tools/psctl/text/exit_code.h"
#include "tools/psctl/text/message_json.h"
#include "tools/psctl/verbs/flags.h"

namespace lodestone::psctl {
namespace {

namespace health = grpc::health::v1;

// ": " and why the ps is not ready, as far as it says so within `timeout_ms`.
std::string ReasonOf(const std::string& address, int timeout_ms) {
  const absl::StatusOr<v1::StatusResponse> status = FetchStatus(address, timeout_ms);
  if (!status.ok()) return "";
  const std::string why = WhyNotReady(*status);
  return why.empty() ? "" : absl::StrCat(": ", why);
}

}  // namespace

absl::Status CheckHealth(const std::string& address, int timeout_ms) {
  const SteadyTime time;
  const int64_t deadline_ms = time.NowMs() + timeout_ms;
  const std::shared_ptr<grpc::Channel> channel = ConnectTo(address);
  const auto stub = health::Health::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(timeout_ms));
  health::HealthCheckResponse response;
  const grpc::Status status = stub->Check(&context, health::HealthCheckRequest(), &response);
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      break;
    case grpc::StatusCode::UNIMPLEMENTED:
      return absl::UnimplementedError(
          absl::StrCat("what listens at ", address, " has no health service: ", status.error_message()));
    default:
      return ErrorOfCall(status, address, timeout_ms, channel.get());
  }
  if (response.status() == health::HealthCheckResponse::SERVING) return absl::OkStatus();
  const int left_ms = static_cast<int>(std::max<int64_t>(1, deadline_ms - time.NowMs()));
  return absl::FailedPreconditionError(
      absl::StrCat("the ps at ", address, " is not ready", ReasonOf(address, left_ms)));
}

int RunHealth(const HealthOptions& options) {
  if (const absl::Status address = CheckAddressFlag(options.address); !address.ok()) {
    return FailUsage("health", address.message());
  }
  const absl::Status status = CheckHealth(options.address, options.timeout_ms);
  if (options.json) {
    const nlohmann::ordered_json json = {
        {"address", options.address}, {"ready", status.ok()}, {"reason", std::string(status.message())}};
    std::fputs(IndentedJson(json).c_str(), stdout);
    return ExitCodeOf(status);
  }
  if (!status.ok()) return Fail("health", status);
  std::printf("the ps at %s is ready\n", options.address.c_str());
  return kExitDone;
}

const Verb kHealthVerb = {
    "health",
    "Says whether a ps is ready: it has joined its cluster, has its shards back from checkpoint and log, and has "
    "been in sync where shards have several copies, can write its log, and is not shutting down. Exit code 0: "
    "ready; 1: not; 3, 4: no answer",
    "  psctl health --address ps1:7000 --timeout 5s           is it ready? the exit code says so\n",
    [](CLI::App* command) -> Verb::Run {
      const auto options = std::make_shared<HealthOptions>();
      AddAddress(command, &options->address, "host:port of the ps");
      AddJson(command, &options->json);
      AddTimeout(command, &options->timeout_ms);
      return [options] { return RunHealth(*options); };
    }};

}  // namespace lodestone::psctl
