#include "tools/psctl/verbs/checkpoint.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "CLI/App.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/wire/checkpoint_parts.h"
#include "nlohmann/json.hpp"
#include "server/checkpoint/manifest.h"
#include "tools/psctl/client/admin_client.h"
#include "tools/psctl/text/exit_code.h"
#include "tools/psctl/text/message_json.h"
#include "tools/psctl/text/table.h"
#include "tools/psctl/verbs/flags.h"

namespace lodestone::psctl {
namespace {

constexpr char kCheckpoint[] = "checkpoint";

// What no ps serves until an operator decides, by the lines that say it; none where that cannot be asked.
std::vector<std::string> UnservedOf(const std::string& address, int timeout_ms) {
  const absl::StatusOr<v1::ClusterStatus> cluster = FetchCluster(address, timeout_ms);
  if (!cluster.ok()) return {};
  return {cluster->unserved().begin(), cluster->unserved().end()};
}

std::string ToText(const std::string& name, const std::vector<CheckpointPart>& parts, const Painter& paint) {
  Rows rows = {{"server", "address", "shards", "bytes", "seconds", "folder"}};
  for (const CheckpointPart& part : parts) {
    std::vector<Cell> row = {absl::StrCat(part.server), part.address};
    if (part.written.ok()) {
      row.insert(row.end(), {absl::StrCat(part.written->shards()), WithUnit(part.written->bytes()),
                             absl::StrFormat("%.2f", part.written->seconds()), part.written->path()});
    } else {
      row.insert(row.end(), {"-", "-", "-", Cell("failed", Style::kBad)});
    }
    rows.push_back(std::move(row));
  }
  return absl::StrCat("checkpoint ", name, "\n", AlignedTable(rows, paint));
}

std::string ToJson(const std::string& name, const std::vector<CheckpointPart>& parts) {
  nlohmann::ordered_json servers = nlohmann::ordered_json::array();
  for (const CheckpointPart& part : parts) {
    nlohmann::ordered_json server = {{"server", part.server}, {"address", part.address}};
    if (part.written.ok()) {
      server["path"] = part.written->path();
      server["shards"] = part.written->shards();
      server["bytes"] = part.written->bytes();
      server["seconds"] = part.written->seconds();
    } else {
      server["error"] = std::string(part.written.status().message());
    }
    servers.push_back(std::move(server));
  }
  const nlohmann::ordered_json all = {{"name", name}, {"servers", std::move(servers)}};
  return IndentedJson(all);
}

}  // namespace

std::string ManualCheckpointName(absl::Time now) {
  return absl::StrCat("manual-", absl::FormatTime("%Y%m%d-%H%M%S", now, absl::UTCTimeZone()));
}

absl::StatusOr<std::vector<CheckpointPart>> CheckpointCluster(const std::string& address, const std::string& name,
                                                              int timeout_ms,
                                                              const std::vector<CheckpointPart>& before) {
  std::set<std::string> wrote;
  for (const CheckpointPart& part : before) {
    if (part.written.ok()) wrote.insert(part.address);
  }
  return AskServers<CheckpointPart>(address, timeout_ms, [&](const std::string& server) {
    return RequestCheckpoint(server, name, timeout_ms, /*again=*/wrote.contains(server));
  });
}

absl::Status JudgeCheckpoint(const std::string& name, const std::vector<CheckpointPart>& parts) {
  std::vector<uint32_t> written, had;
  std::vector<v1::CheckpointResponse> responses;
  for (const CheckpointPart& part : parts) {
    if (part.written.ok()) written.push_back(part.server);
    if (part.written.ok()) responses.push_back(*part.written);
    if (absl::IsAlreadyExists(part.written.status())) had.push_back(part.server);
  }
  if (written.size() == parts.size()) return CheckHoldsAllShards(name, responses);
  const std::string incomplete =
      absl::StrCat("checkpoint `", name, "` is not complete: ", parts.size() - written.size(), " of ", parts.size(),
                   " servers failed");
  if (had.empty() || written.empty()) return absl::UnavailableError(incomplete);
  return absl::AlreadyExistsError(absl::StrCat(
      incomplete, ". Ps ", absl::StrJoin(had, ", "), " had it from before, and what ps ", absl::StrJoin(written, ", "),
      " wrote now is of another moment: write one of another name, and do not load this one"));
}

int RunCheckpoint(CheckpointOptions options) {
  if (const absl::Status address = CheckAddressFlag(options.address); !address.ok()) {
    return FailUsage(kCheckpoint, address.message());
  }
  if (options.name.empty()) options.name = ManualCheckpointName(absl::Now());
  if (const absl::Status name = server::CheckCheckpointName(options.name); !name.ok())
    return FailUsage(kCheckpoint, name.message());
  auto parts = CheckpointCluster(options.address, options.name, options.timeout_ms);
  if (!parts.ok()) return Fail(kCheckpoint, parts.status());
  absl::Status whole = JudgeCheckpoint(options.name, *parts);
  std::vector<std::string> unserved;
  if (absl::IsAborted(whole)) unserved = UnservedOf(options.address, options.timeout_ms);
  for (int attempt = 1; attempt < kCheckpointAttemptsMax && absl::IsAborted(whole) && unserved.empty(); ++attempt) {
    std::this_thread::sleep_for(std::chrono::milliseconds(kCheckpointAgainMs));
    parts = CheckpointCluster(options.address, options.name, options.timeout_ms, *std::move(parts));
    if (!parts.ok()) return Fail(kCheckpoint, parts.status());
    whole = JudgeCheckpoint(options.name, *parts);
  }
  std::fputs(
      (options.json ? ToJson(options.name, *parts) : ToText(options.name, *parts, Painter(WantsColor(STDOUT_FILENO))))
          .c_str(),
      stdout);
  for (const CheckpointPart& part : *parts) {
    if (part.written.ok()) continue;
    Complain(kCheckpoint, absl::StrCat("ps ", part.server, ": ", part.written.status().message()));
  }
  if (whole.ok()) return kExitDone;
  Complain(kCheckpoint, whole.message());
  for (const std::string& line : unserved) Complain(kCheckpoint, line);
  if (absl::IsAborted(whole) && unserved.empty()) {
    Complain(kCheckpoint, "write one of another name once psctl status shows no moves");
  }
  return kExitFailed;
}

const Verb kCheckpointVerb = {
    "checkpoint", "Has all servers write a checkpoint",
    "  psctl checkpoint --address 127.0.0.1:7000 before-move  all servers write a checkpoint of that name\n",
    [](CLI::App* command) -> Verb::Run {
      const auto options = std::make_shared<CheckpointOptions>();
      command->add_option("NAME", options->name, "Its name (default: manual- and the time, in UTC)");
      AddAddress(command, &options->address);
      AddJson(command, &options->json);
      AddTimeout(command, &options->timeout_ms, "How long to wait for it");
      return [options] { return RunCheckpoint(*options); };
    }};

}  // namespace lodestone::psctl
