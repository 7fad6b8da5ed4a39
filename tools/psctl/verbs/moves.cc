#include "tools/psctl/verbs/moves.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "CLI/App.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/numbers_text.h"
#include "common/base/status.h"
#include "common/base/time_source.h"
#include "nlohmann/json.hpp"
#include "tools/psctl/client/admin_client.h"
#include "tools/psctl/text/exit_code.h"
#include "tools/psctl/text/message_json.h"
#include "tools/psctl/verbs/flags.h"

namespace lodestone::psctl {
namespace {

constexpr size_t kShardsMax = 1 << 20;
constexpr size_t kRunsMax = 16;  // Of shards, named in one line.

// What is still to be done of a plan: shards; and why, if something holds it up.
struct Left {
  size_t shards = 0;
  std::string waiting_for;
};

// Finds that out. ABORTED: the rest of the plan will not be done. Other errors: it cannot be known now.
using FindLeft = std::function<absl::StatusOr<Left>(const v1::ClusterStatus&)>;

// The owners that shards are to get.
using Targets = std::map<uint32_t, uint32_t>;

Left LeftOf(const v1::ClusterStatus& cluster, const std::function<bool(const v1::ShardMove&)>& is_of_it) {
  Left left;
  for (const v1::ShardMove& move : cluster.moves()) {
    if (!is_of_it(move)) continue;
    ++left.shards;
    if (left.waiting_for.empty()) left.waiting_for = move.waiting_for();
  }
  return left;
}

Left AllOf(const v1::ClusterStatus& cluster) {
  return LeftOf(cluster, [](const v1::ShardMove&) { return true; });
}

// Those that the plan has now for owners that `is_of_it` wants.
Targets TargetsOf(const v1::ClusterStatus& cluster, const std::function<bool(uint32_t server)>& is_of_it) {
  Targets targets;
  for (const v1::ShardMove& move : cluster.moves()) {
    if (!move.of_follower() && is_of_it(move.to())) targets[move.shard()] = move.to();
  }
  return targets;
}

// Whether the shards of a plan that is no more are where they were to move. ABORTED: not all of them, and `hint`.
absl::Status CheckOwners(const MovesOptions& options, const Targets& targets, const std::string& hint = "") {
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<uint32_t> owners, FetchOwners(options.address, options.timeout_ms));
  std::vector<uint32_t> elsewhere;
  for (const auto& [shard, server] : targets) {
    if (shard >= owners.size() || owners[shard] != server) elsewhere.push_back(shard);
  }
  if (elsewhere.empty()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat(targets.size() - elsewhere.size(), " of ", targets.size(),
                                         " shards moved; the rest was given up (psctl move --cancel) or given another "
                                         "target meanwhile: ",
                                         elsewhere.size() == 1 ? "shard " : "shards ", NumbersText(elsewhere, kRunsMax),
                                         hint));
}

// Whether no live ps that may own shards owns more than one more than this one.
bool HasItsPart(const v1::ClusterStatus& cluster, uint32_t server) {
  uint32_t own = 0, most = 0;
  for (const v1::MemberStatus& member : cluster.servers()) {
    if (member.index() == server) own = member.shards_owned();
    if (member.alive() && !member.draining()) most = std::max(most, member.shards_owned());
  }
  return own + 1 >= most;
}

// Prints a line; with --json nothing.
template <typename... Parts>
void Say(const MovesOptions& options, const Parts&... parts) {
  if (options.json) return;
  std::printf("%s\n", absl::StrCat(parts...).c_str());
  std::fflush(stdout);
}

// Waits until nothing is left, and says how far it is. Fails if the rest will not be done.
int AwaitDone(const char* verb, const MovesOptions& options, const FindLeft& find_left) {
  const SteadyTime time;
  int64_t answered_ms = time.NowMs();
  std::string said;
  for (;;) {
    const absl::StatusOr<v1::ClusterStatus> cluster = FetchCluster(options.address, options.timeout_ms);
    const absl::StatusOr<Left> left = cluster.ok() ? find_left(*cluster) : cluster.status();
    if (left.ok()) {
      answered_ms = time.NowMs();
      if (left->shards == 0) return kExitDone;
      if (said.empty()) {
        Say(options, "Ctrl-C ends this wait, not the moves; psctl move --cancel gives up what has not moved");
      }
      std::string line = absl::StrCat(left->shards, left->shards == 1 ? " shard is" : " shards are", " still to move");
      if (!left->waiting_for.empty()) absl::StrAppend(&line, "; waits for ", left->waiting_for);
      if (line != said) Say(options, line);
      said = std::move(line);
    } else if (absl::IsAborted(left.status())) {
      return Fail(verb, left.status());
    } else if (time.NowMs() - answered_ms > options.timeout_ms) {
      Complain(verb, "the plan is saved, and goes on when the coordinator is back");
      return Fail(verb, left.status());
    }
    if (NobodyReads(options.poll_ms)) return kExitInterrupted;
  }
}

// Whether a ps has joined and lives. INVALID_ARGUMENT: it has no place in the cluster.
absl::StatusOr<bool> IsThere(const v1::ClusterStatus& cluster, uint32_t server) {
  const uint32_t places = cluster.servers_expected() + cluster.places_kept();
  if (server >= places) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no place for ps ", server, ": cluster.servers is ", places,
                     ", and indices start at 0. A greater number needs a restart of all ps: see \"More ps\" in "
                     "server/README.md"));
  }
  return std::any_of(cluster.servers().begin(), cluster.servers().end(),
                     [server](const v1::MemberStatus& member) { return member.index() == server && member.alive(); });
}

// Waits until a ps is there, and there is a shard map. The coordinator may be away for a while.
int AwaitThere(const MovesOptions& options, uint32_t server) {
  const SteadyTime time;
  int64_t answered_ms = time.NowMs();
  for (std::string said;;) {
    const absl::StatusOr<v1::ClusterStatus> cluster = FetchCluster(options.address, options.timeout_ms);
    if (cluster.ok()) {
      answered_ms = time.NowMs();
      const absl::StatusOr<bool> there = IsThere(*cluster, server);
      if (!there.ok()) return FailUsage("add", there.status().message());
      if (*there && (options.no_wait || cluster->route_epoch() > 0)) return kExitDone;
      if (options.no_wait) {
        return Fail("add", absl::FailedPreconditionError(
                               absl::StrCat("ps ", server, " is not there: start it, with server.index: ", server)));
      }
      std::string line = *there ? "waits for the ps that the cluster begins with"
                                : absl::StrCat("waits for ps ", server, ": start it, with server.index: ", server);
      if (line != said) Say(options, line);
      said = std::move(line);
    } else if (time.NowMs() - answered_ms > options.timeout_ms) {
      return Fail("add", cluster.status());
    }
    if (NobodyReads(options.poll_ms)) return kExitInterrupted;
  }
}

// Waits, unless that is not wanted, and says that all is done; with --json, prints `plan` and whether it is.
int End(const char* verb, const MovesOptions& options, nlohmann::ordered_json plan, const std::string& done,
        const FindLeft& find_left) {
  const int code = options.no_wait ? kExitDone : AwaitDone(verb, options, find_left);
  const bool is_done = code == kExitDone && !options.no_wait;
  if (is_done) Say(options, done);
  plan["done"] = is_done;
  if (options.json) std::fputs(IndentedJson(plan).c_str(), stdout);
  return code;
}

// The same for what is done at once.
int End(const MovesOptions& options, const nlohmann::ordered_json& outcome, const std::string& done) {
  Say(options, done);
  if (options.json) std::fputs(IndentedJson(outcome).c_str(), stdout);
  return kExitDone;
}

void AddCommon(CLI::App* command, MovesOptions* options) {
  command->add_flag("--no-wait", options->no_wait, "Return as soon as it is planned");
  AddAddress(command, &options->address, "host:port of a ps of the cluster; its coordinator is asked");
  AddJson(command, &options->json);
  AddTimeout(command, &options->timeout_ms);
}

}  // namespace

absl::StatusOr<std::vector<uint32_t>> ParseNumbers(absl::string_view text, size_t max) {
  std::vector<uint32_t> numbers;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> ends = absl::StrSplit(part, absl::MaxSplits('-', 1));
    const bool is_run = part.find('-') != absl::string_view::npos;
    uint32_t first = 0, last = 0;
    if (!absl::SimpleAtoi(ends.first, &first) || !absl::SimpleAtoi(is_run ? ends.second : ends.first, &last) ||
        first > last) {
      return absl::InvalidArgumentError(
          absl::StrCat("`", part, "` is neither a number nor a run of numbers such as 0-15"));
    }
    if (last - first >= max - numbers.size()) return absl::InvalidArgumentError(absl::StrCat("`", part, "`: too many"));
    for (uint64_t number = first; number <= last; ++number) numbers.push_back(static_cast<uint32_t>(number));
  }
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

int RunMove(const MovesOptions& options) {
  if (const absl::Status address = CheckAddressFlag(options.address); !address.ok()) {
    return FailUsage("move", address.message());
  }
  v1::MoveRequest request;
  std::vector<uint32_t> shards;
  if (!options.shards.empty()) {
    auto parsed = ParseNumbers(options.shards, kShardsMax);
    if (!parsed.ok()) return FailUsage("move", parsed.status().message());
    shards = *std::move(parsed);
  } else if (!options.cancel) {
    return FailUsage("move", "which shards? such as `psctl move 0-15 1`");
  }
  if (!options.cancel && !options.server.has_value()) return FailUsage("move", "to which ps? such as `psctl move 3 1`");
  request.mutable_shards()->Add(shards.begin(), shards.end());
  request.set_cancel(options.cancel);
  request.set_server(options.server.value_or(0));
  const absl::StatusOr<v1::MoveResponse> planned = RequestMove(options.address, request, options.timeout_ms);
  if (!planned.ok()) return Fail("move", planned.status());
  if (options.cancel) {
    return End(options, {{"cancelled", planned->cancelled()}},
               absl::StrCat(planned->cancelled(), " planned moves are given up"));
  }
  Say(options, shards.size() == 1 ? "shard " : "shards ", NumbersText(shards, kRunsMax), " to ps ", *options.server);
  Targets targets;
  for (const uint32_t shard : shards) targets[shard] = *options.server;
  return End("move", options, {{"shards", shards}, {"server", *options.server}, {"planned", planned->planned()}},
             absl::StrCat("ps ", *options.server, " owns them"),
             [&](const v1::ClusterStatus& cluster) -> absl::StatusOr<Left> {
               const Left left = LeftOf(cluster, [&](const v1::ShardMove& move) {
                 return !move.of_follower() && move.to() == *options.server && targets.contains(move.shard());
               });
               if (left.shards == 0) LODESTONE_RETURN_IF_ERROR(CheckOwners(options, targets));
               return left;
             });
}

int RunDrain(const MovesOptions& options) {
  if (const absl::Status address = CheckAddressFlag(options.address); !address.ok()) {
    return FailUsage("drain", address.message());
  }
  const uint32_t server = options.server.value_or(0);
  v1::DrainRequest request;
  request.set_server(server);
  request.set_undo(options.undo);
  const absl::StatusOr<v1::DrainResponse> planned = RequestDrain(options.address, request, options.timeout_ms);
  if (!planned.ok()) return Fail("drain", planned.status());
  const nlohmann::ordered_json plan = {{"server", server}, {"shards_owned", planned->shards_owned()}};
  if (options.undo) {
    return End(options, plan,
               absl::StrCat("ps ", server, " may own shards again, and owns ", planned->shards_owned(),
                            "; psctl rebalance gives it its part"));
  }
  const std::string follows =
      planned->shards_following() == 0 ? "" : absl::StrCat(" and follows ", planned->shards_following());
  Say(options, "ps ", server, " owns ", planned->shards_owned(), " shards", follows, ", which move to others");
  return End(
      "drain", options, plan,
      absl::StrCat("ps ", server, " holds no shard: it can be stopped; psctl drain ", server,
                   " --undo lets it own shards again"),
      [server](const v1::ClusterStatus& cluster) -> absl::StatusOr<Left> {
        Left left = LeftOf(cluster, [server](const v1::ShardMove& move) { return move.from() == server; });
        for (const v1::MemberStatus& member : cluster.servers()) {
          if (member.index() != server) continue;
          left.shards = member.shards_owned() + member.shards_following();
          if (member.draining()) continue;
          return absl::AbortedError(absl::StrCat("ps ", server,
                                                 " drains no more: it may own shards again since a psctl drain --undo "
                                                 "or psctl add, and owns ",
                                                 member.shards_owned(), ". Do not stop it"));
        }
        return left;
      });
}

int RunRebalance(const MovesOptions& options) {
  if (const absl::Status address = CheckAddressFlag(options.address); !address.ok()) {
    return FailUsage("rebalance", address.message());
  }
  v1::MoveRequest request;
  request.set_level(true);
  const absl::StatusOr<v1::MoveResponse> planned = RequestMove(options.address, request, options.timeout_ms);
  if (!planned.ok()) return Fail("rebalance", planned.status());
  Say(options, planned->planned(), " shards are to move");
  std::optional<Targets> targets;  // As they were planned.
  return End("rebalance", options, {{"planned", planned->planned()}}, "no shard is left to move",
             [&](const v1::ClusterStatus& cluster) -> absl::StatusOr<Left> {
               if (!targets.has_value()) targets = TargetsOf(cluster, [](uint32_t) { return true; });
               const Left left = AllOf(cluster);
               const bool level =
                   std::all_of(cluster.servers().begin(), cluster.servers().end(), [&](const v1::MemberStatus& member) {
                     return !member.alive() || member.draining() || HasItsPart(cluster, member.index());
                   });
               if (left.shards == 0 && !level) LODESTONE_RETURN_IF_ERROR(CheckOwners(options, *targets));
               return left;
             });
}

int RunAdd(const MovesOptions& options) {
  if (const absl::Status address = CheckAddressFlag(options.address); !address.ok()) {
    return FailUsage("add", address.message());
  }
  const uint32_t server = options.server.value_or(0);
  if (const int code = AwaitThere(options, server); code != kExitDone) return code;
  v1::DrainRequest undo;
  undo.set_server(server);
  undo.set_undo(true);
  const absl::StatusOr<v1::DrainResponse> may_own = RequestDrain(options.address, undo, options.timeout_ms);
  if (!may_own.ok()) return Fail("add", may_own.status());
  v1::MoveRequest level;
  level.set_level(true);
  const absl::StatusOr<v1::MoveResponse> planned = RequestMove(options.address, level, options.timeout_ms);
  if (!planned.ok()) return Fail("add", planned.status());
  Say(options, "ps ", server, " is there and owns ", may_own->shards_owned(), " shards; ", planned->planned(),
      " shards are to move");
  std::optional<Targets> part;  // As it was planned.
  return End("add", options, {{"server", server}, {"planned", planned->planned()}},
             absl::StrCat("ps ", server, " has its part"),
             [&](const v1::ClusterStatus& cluster) -> absl::StatusOr<Left> {
               if (!part.has_value()) part = TargetsOf(cluster, [server](uint32_t to) { return to == server; });
               const Left left = AllOf(cluster);
               if (left.shards == 0 && !HasItsPart(cluster, server)) {
                 LODESTONE_RETURN_IF_ERROR(CheckOwners(options, *part, "; psctl rebalance gives it its part"));
                 if (part->empty() && planned->planned() > 0) {
                   return absl::AbortedError(absl::StrCat(
                       "ps ", server,
                       " has not its part: the moves to it were given up at once (psctl move --cancel), or "
                       "others had been planned before; psctl rebalance gives it its part"));
                 }
               }
               return left;
             });
}

const Verb kMoveVerb = {
    "move",
    "Gives shards another owner while pushes go on. The new owner gets a copy and takes over at a version; clients "
    "see a short pause. With cluster.replicas above 1 it follows the shard first, and the former owner follows then",
    "  psctl move 0-15 2 --address ps0:7000                   shards 0 to 15 go to ps 2; returns when they are there\n"
    "  psctl move --cancel                                    what has not moved yet stays\n",
    [](CLI::App* command) -> Verb::Run {
      const auto options = std::make_shared<MovesOptions>();
      command->add_option("SHARDS", options->shards, "Such as 3, 0-15 or 1,5,7-9; with --cancel all, if none is named");
      command->add_option("SERVER", options->server, "server.index of the ps that is to own them");
      command->add_flag("--cancel", options->cancel, "Give up moves that are planned; what has moved stays there");
      AddCommon(command, options.get());
      return [options] { return RunMove(*options); };
    }};

const Verb kDrainVerb = {
    "drain",
    "Moves all shards that a ps owns or follows to the others while pushes go on. The ps can be stopped then, and gets "
    "no shard before --undo",
    "  psctl drain 1 --address ps0:7000                       ps 1 can be stopped once it says so\n",
    [](CLI::App* command) -> Verb::Run {
      const auto options = std::make_shared<MovesOptions>();
      command->add_option("SERVER", options->server, "server.index of the ps")->required();
      command->add_flag("--undo", options->undo, "It may own shards again");
      AddCommon(command, options.get());
      return [options] { return RunDrain(*options); };
    }};

const Verb kRebalanceVerb = {
    "rebalance",
    "Moves shards until all live ps own the same number, give or take one, and with cluster.replicas above 1 until "
    "they follow as many, too; a drained ps owns none. Counts shards, not "
    "bytes or load; coordinator.rebalance: auto has the coordinator even those out",
    "  psctl rebalance --address ps0:7000                     after a ps was drained, and is back\n",
    [](CLI::App* command) -> Verb::Run {
      const auto options = std::make_shared<MovesOptions>();
      AddCommon(command, options.get());
      return [options] { return RunRebalance(*options); };
    }};

const Verb kAddVerb = {
    "add",
    "Waits until a ps is there, lets it own shards, and moves its part to it while pushes go on. The ps takes a place "
    "of the cluster that is free: one that cluster.servers_at_start keeps, or one that was drained and stopped. "
    "cluster.servers is the number of places",
    "  psctl add 3 --address ps0:7000                         then start the ps with server.index: 3 on its machine\n",
    [](CLI::App* command) -> Verb::Run {
      const auto options = std::make_shared<MovesOptions>();
      command->add_option("SERVER", options->server, "server.index of the ps")->required();
      AddCommon(command, options.get());
      return [options] { return RunAdd(*options); };
    }};

}  // namespace lodestone::psctl
