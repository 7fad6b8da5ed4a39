#include "tools/psctl/verbs/set.h"

#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "CLI/App.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/config/table_check.h"
#include "common/config/yaml_printer.h"
#include "common/config/yaml_reader.h"
#include "nlohmann/json.hpp"
#include "tools/psctl/client/admin_client.h"
#include "tools/psctl/text/exit_code.h"
#include "tools/psctl/text/message_json.h"
#include "tools/psctl/text/style.h"
#include "tools/psctl/verbs/flags.h"

namespace lodestone::psctl {
namespace {

constexpr char kSet[] = "set";

// The answer of one ps.
struct SetPart {
  uint32_t server = 0;
  std::string address;
  absl::StatusOr<v1::SetTableResponse> done;
};

absl::StatusOr<std::vector<SetPart>> SetOnCluster(const SetOptions& options, const v1::SetTableRequest& request) {
  return AskServers<SetPart>(options.address, options.timeout_ms, [&](const std::string& server) {
    return RequestSetTable(server, request, options.timeout_ms);
  });
}

// UNIMPLEMENTED if a ps is of a version that knows nothing of settings which are held: it could not follow one that
// does.
absl::Status CheckVersions(const SetOptions& options) {
  v1::SetTableRequest question;
  question.set_table(options.table);
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<SetPart> parts, SetOnCluster(options, question));
  for (const SetPart& part : parts) {
    if (!absl::IsUnimplemented(part.done.status())) continue;
    return absl::UnimplementedError(absl::StrCat("ps ", part.server,
                                                 " is of an older version, in which no settings are ",
                                                 "held: start it again with this version; nothing was changed"));
  }
  return absl::OkStatus();
}

// The settings as YAML, without what only the ps and the model description are concerned with.
std::string SettingsText(v1::TableSpec spec) {
  std::string text;
  if (!spec.held().empty()) {
    text = absl::StrCat("# held against what workers bring: ", Printable(absl::StrJoin(spec.held(), ", ")), "\n");
  }
  spec.clear_held();
  spec.clear_model();
  spec.clear_revision();
  for (const absl::string_view line : absl::StrSplit(PrintYaml(spec), '\n', absl::SkipEmpty())) {
    if (!absl::StartsWith(line, "revision:")) absl::StrAppend(&text, Printable(line), "\n");
  }
  return text;
}

void PrintText(const std::vector<SetPart>& parts, bool changes) {
  for (const SetPart& part : parts) {
    if (!part.done.ok()) continue;
    if (part.done->absent()) {
      std::printf("ps %u: owns no shards yet, and gets the table with the first\n", part.server);
      continue;
    }
    if (!changes) continue;
    std::printf("ps %u: %s\n", part.server, part.done->changed() ? "changed" : "was so already");
  }
  std::optional<v1::TableSpec> first;
  for (const SetPart& part : parts) {
    if (!part.done.ok() || part.done->absent()) continue;
    v1::TableSpec settings = part.done->settings();
    settings.clear_revision();  // Each ps counts by itself.
    if (!first.has_value()) {
      std::fputs(SettingsText(settings).c_str(), stdout);
      first = std::move(settings);
    } else if (const std::string other = Differences(*first, settings); !other.empty()) {
      std::printf("ps %u has other settings: %s\n", part.server, Printable(other).c_str());
    }
  }
}

std::string ToJson(const SetOptions& options, const std::vector<SetPart>& parts) {
  nlohmann::ordered_json servers = nlohmann::ordered_json::array();
  for (const SetPart& part : parts) {
    nlohmann::ordered_json server = {{"server", part.server}, {"address", part.address}};
    if (part.done.ok() && part.done->absent()) {
      server["absent"] = true;
    } else if (part.done.ok()) {
      server["changed"] = part.done->changed();
      server["settings"] = JsonOf(part.done->settings());
    } else {
      server["error"] = std::string(part.done.status().message());
    }
    servers.push_back(std::move(server));
  }
  return IndentedJson(nlohmann::ordered_json{{"table", options.table}, {"servers", std::move(servers)}});
}

// Says what went wrong, and returns the exit code.
int Judge(const std::vector<SetPart>& parts, bool changes) {
  size_t failed = 0;
  for (const SetPart& part : parts) {
    if (part.done.ok()) continue;
    ++failed;
    Complain(kSet, absl::StrCat("ps ", part.server, ": ", part.done.status().message()));
  }
  if (failed == 0) return kExitDone;
  if (changes && failed < parts.size()) {
    Complain(kSet, absl::StrCat(failed, " of ", parts.size(), " servers failed, the others have it so now. It is safe ",
                                "to run this again"));
  }
  return kExitFailed;
}

}  // namespace

absl::StatusOr<v1::SetTableRequest> MakeSetRequest(const SetOptions& options) {
  v1::SetTableRequest request;
  request.set_table(options.table);
  YamlReader reader(request.mutable_settings());
  for (const std::string& assignment : options.assignments) {
    reader.Set(assignment);
    request.add_fields(assignment.substr(0, assignment.find('=')));
  }
  if (const absl::Status status = reader.status(); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrReplaceAll(status.message(), {{"--set ", ""}}));
  }
  for (const std::string& path : options.released) request.add_released(path);
  return request;
}

int RunSet(const SetOptions& options) {
  if (const absl::Status address = CheckAddressFlag(options.address); !address.ok()) {
    return FailUsage(kSet, address.message());
  }
  const absl::StatusOr<v1::SetTableRequest> request = MakeSetRequest(options);
  if (!request.ok()) return FailUsage(kSet, request.status().message());
  const bool changes = !options.assignments.empty() || !options.released.empty();
  if (changes) {
    if (const absl::Status known = CheckVersions(options); !known.ok()) return Fail(kSet, known);
  }
  const auto parts = SetOnCluster(options, *request);
  if (!parts.ok()) return Fail(kSet, parts.status());
  if (options.json) {
    std::fputs(ToJson(options, *parts).c_str(), stdout);
  } else {
    PrintText(*parts, changes);
  }
  return Judge(*parts, changes);
}

const Verb kSetVerb = {
    kSet, "Changes settings of a table while it is trained, or prints them: its learning rate, consistency, guard, …",
    "  psctl set embedding optimizer.learning_rate=0.01       a lower learning rate while training goes on\n"
    "  psctl set embedding                                    prints the settings of table embedding\n",
    [](CLI::App* command) -> Verb::Run {
      const auto options = std::make_shared<SetOptions>();
      command->add_option("TABLE", options->table, "Its name; psctl tables lists them")->required();
      command->add_option(
          "FIELD=VALUE", options->assignments,
          "What is set, as in the configuration of a table: optimizer.learning_rate=0.01, "
          "consistency={bounded: {staleness: 4}}, guard.norm_max_factor=10, embedding.eviction.ttl_ms=86400000. It is "
          "held then: what the configurations of workers that join say of it counts for nothing. None: the settings "
          "are printed");
      command
          ->add_option("--release", options->released,
                       "A field that is held and is to be so no more; it stays as it is until a worker joins whose "
                       "configuration says otherwise. May be given several times")
          ->allow_extra_args(false);
      AddAddress(command, &options->address);
      AddJson(command, &options->json);
      AddTimeout(command, &options->timeout_ms, "How long to wait for each ps");
      return [options] { return RunSet(*options); };
    }};

}  // namespace lodestone::psctl
