// Fuzzes the HTTP port: any bytes end in an answer or in none, in time, and what is guarded is told to nobody who does
// not show the token. To run it for a minute:
//   bazel build --config=asan //tests/fuzz:http_fuzz
//   bazel-bin/tests/fuzz/http_fuzz -max_total_time=60 -timeout=10 -max_len=4096 "$(mktemp -d)" tests/fuzz/http_corpus
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/check.h"
#include "common/http/http_server.h"
#include "tests/common/http/http_client.h"

namespace {

using lodestone::HttpRequest;
using lodestone::HttpResponse;
using lodestone::HttpServer;

constexpr char kSecret[] = "the answer that is guarded";

uint16_t Port() {
  static const HttpServer* const server = [] {
    HttpServer::Security security;
    security.check = [](const HttpRequest& request) {
      return request.token == "good" ? absl::OkStatus() : absl::UnauthenticatedError("no token");
    };
    const auto echo = [](const HttpRequest& request) {
      HttpResponse response;
      for (const auto& [name, value] : request.parameters) response.body += name + "=" + value + "\n";
      return response;
    };
    const auto secret = [](const HttpRequest& request) {
      LODESTONE_CHECK(request.token == "good");
      return HttpResponse{.body = kSecret};
    };
    auto started = HttpServer::Start("127.0.0.1:0", {{"/", echo}, {"/secret", secret}}, std::move(security));
    LODESTONE_CHECK(started.ok());
    return started->release();
  }();
  return server->port();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view request(reinterpret_cast<const char*>(data), size);
  lodestone::HttpConnection connection(Port());
  LODESTONE_CHECK(connection.connected());
  connection.Send(request);
  connection.EndSending();  // Otherwise it would wait for the rest.
  const std::string answer = connection.ReadAll();
  LODESTONE_CHECK(answer.empty() || answer.starts_with("HTTP/1.1 "));
  if (answer.find(kSecret) != std::string::npos) LODESTONE_CHECK(request.find("good") != std::string_view::npos);
  return 0;
}
