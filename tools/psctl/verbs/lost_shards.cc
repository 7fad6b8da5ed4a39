#include "tools/psctl/verbs/lost_shards.h"

#include <cstdio>
#include <memory>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tools/psctl/client/admin_client.h"
#include "tools/psctl/text/exit_code.h"
#include "tools/psctl/text/message_json.h"
#include "tools/psctl/verbs/flags.h"

namespace lodestone::psctl {
namespace {

template <typename Response>
using Request = absl::StatusOr<Response> (*)(const std::string& address, uint32_t server, int timeout_ms);

template <typename Response>
int Run(const char* verb, const LostShardsOptions& options, Request<Response> request) {
  if (const absl::Status address = CheckAddressFlag(options.address); !address.ok()) {
    return FailUsage(verb, address.message());
  }
  int exit_code = kExitDone;
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const uint32_t server : options.servers) {
    const absl::StatusOr<Response> done = request(options.address, server, options.timeout_ms);
    if (!done.ok()) {
      exit_code = Fail(verb, done.status());
      all.push_back({{"server", server}, {"error", std::string(done.status().message())}});
      continue;
    }
    all.push_back({{"server", server}, {"shards", done->shards()}, {"unserved", done->unserved()}});
    if (options.json) continue;
    std::printf("ps %u owns and serves %u shards that nobody served; %u are left\n", server, done->shards(),
                done->unserved());
  }
  if (options.json) std::fputs(IndentedJson(all).c_str(), stdout);
  return exit_code;
}

std::shared_ptr<LostShardsOptions> Declare(CLI::App* command, const char* servers) {
  auto options = std::make_shared<LostShardsOptions>();
  command->add_option("SERVER", options->servers, servers)->required();
  AddAddress(command, &options->address, "host:port of a ps of the cluster; its coordinator is asked");
  AddJson(command, &options->json);
  AddTimeout(command, &options->timeout_ms);
  return options;
}

}  // namespace

int RunPromote(const LostShardsOptions& options) { return Run("promote", options, &RequestPromote); }

int RunAcceptLoss(const LostShardsOptions& options) {
  const int exit_code = Run("accept-loss", options, &RequestAcceptLoss);
  if (exit_code == kExitDone && !options.json) {
    std::puts("workers that the ps no longer knows end (\"has no session on this ps\"): start those again");
  }
  return exit_code;
}

const Verb kPromoteVerb = {
    "promote",
    "Makes a ps the owner of the shards that are not served and of which it holds a copy. Their owner cannot come "
    "back, "
    "or was restarted without their data; what the copies lack is lost. `psctl status` says which ps holds what",
    "  psctl promote 1 --address ps0:7000                     ps 1 goes on with its copies of what nobody serves\n",
    [](CLI::App* command) -> Verb::Run {
      const auto options = Declare(command, "server.index of the ps that holds copies; several: one after the other");
      return [options] { return RunPromote(*options); };
    }};

const Verb kAcceptLossVerb = {
    "accept-loss",
    "Has a ps serve the shards that it has lost, from what it has of them. It was restarted without their data, "
    "and no copy is to be promoted; what it had before and has no more is lost. `psctl status` says which ps that is",
    "  psctl accept-loss 0 --address ps0:7000                 ps 0 goes on without what it has lost\n",
    [](CLI::App* command) -> Verb::Run {
      const auto options =
          Declare(command, "server.index of the ps that has lost shards; several: one after the other");
      return [options] { return RunAcceptLoss(*options); };
    }};

}  // namespace lodestone::psctl
