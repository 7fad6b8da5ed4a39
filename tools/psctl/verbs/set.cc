#include "tools/psctl/verbs/set.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "CLI/App.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/base/time_source.h"
#include "common/config/table_check.h"
#include "common/config/yaml_printer.h"
#include "common/config/yaml_reader.h"
#include "nlohmann/json.hpp"
#include "tools/psctl/client/admin_client.h"
#include "tools/psctl/client/held_pause.h"
#include "tools/psctl/client/table_setter.h"
#include "tools/psctl/text/exit_code.h"
#include "tools/psctl/text/message_json.h"
#include "tools/psctl/text/style.h"
#include "tools/psctl/verbs/flags.h"

namespace lodestone::psctl {
namespace {

constexpr char kSet[] = "set";

// UNIMPLEMENTED if a ps is of a version that knows nothing of settings which are held: it could not follow one that
// does.
absl::Status CheckVersions(const std::vector<SetPart>& parts) {
  for (const SetPart& part : parts) {
    if (!absl::IsUnimplemented(part.done.status())) continue;
    return absl::UnimplementedError(absl::StrCat("ps ", part.server,
                                                 " is of an older version, in which no settings are ",
                                                 "held: start it again with this version; nothing was changed"));
  }
  return absl::OkStatus();
}

bool HasSteps(const v1::Consistency& consistency) { return consistency.has_sync() || consistency.has_tokens(); }

// Whether the order of steps becomes another one for which training has to pause.
bool ChangesSteps(const v1::SetTableRequest& request, const std::vector<SetPart>& now) {
  const bool any = std::any_of(request.fields().begin(), request.fields().end(),
                               [](const std::string& field) { return absl::StartsWith(field, "consistency"); });
  if (!any) return false;
  if (HasSteps(request.settings().consistency())) return true;
  return std::any_of(now.begin(), now.end(), [](const SetPart& part) {
    return part.done.ok() && HasSteps(part.done->settings().consistency());
  });
}

// What a table is by now, and is to be.
struct Planned {
  std::string table;
  v1::TableSpec now;
};

// FAILED_PRECONDITION: some tables of the model are meant, and others are not.
absl::Status CheckWholeModel(const v1::ModelDescription& model, const std::vector<Planned>& meant,
                             const std::vector<Planned>& others) {
  const auto first_of_model = [&](const std::vector<Planned>& tables) {
    return std::find_if(tables.begin(), tables.end(), [&](const Planned& table) {
      return std::any_of(model.tables().begin(), model.tables().end(),
                         [&](const v1::ModelDescription::Table& one) { return one.name() == table.table; });
    });
  };
  const auto one = first_of_model(meant), other = first_of_model(others);
  if (one == meant.end() || other == others.end()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "table `", other->table, "` is of the same model as `", one->table, "`, and all tables of a model have the ",
      "same steps: name it too, or say --all-tables; nothing was changed"));
}

// What speaks against another order of steps, before anything is changed: a ps that does not answer, a table that would
// refuse it, and one of the same model that is not meant.
absl::Status CheckSteps(const v1::SetTableRequest& request, const std::vector<Planned>& meant,
                        const std::vector<Planned>& others) {
  const bool sync = request.settings().consistency().has_sync();
  const auto sets_guard = [&] {
    return std::any_of(request.fields().begin(), request.fields().end(),
                       [](const std::string& field) { return absl::StartsWith(field, "guard"); });
  };
  for (const Planned& table : meant) {
    const v1::TableSpec& after = sets_guard() ? request.settings() : table.now;
    if (!sync || after.guard().norm_max_factor() <= 0) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "table `", table.table, "` has a guard, which may refuse a batch that a synchronous step then waits for: set ",
        "guard.norm_max_factor=0 too; nothing was changed"));
  }
  for (const auto* tables : {&meant, &others}) {
    for (const Planned& table : *tables) {
      LODESTONE_RETURN_IF_ERROR(CheckWholeModel(table.now.model(), meant, others));
    }
  }
  return absl::OkStatus();
}

// The tables that are meant, and the assignments.
struct Meant {
  std::vector<std::string> tables;
  std::vector<std::string> assignments;
};

absl::StatusOr<Meant> MeantBy(const SetOptions& options) {
  Meant meant{{}, options.assignments};
  if (!options.all_tables) {
    meant.tables = absl::StrSplit(options.table, ',', absl::SkipEmpty());
    if (!meant.tables.empty()) return meant;
    return absl::InvalidArgumentError("which table? Name one (psctl tables lists them), or say --all-tables");
  }
  if (absl::StrContains(options.table, '=')) {
    meant.assignments.insert(meant.assignments.begin(), options.table);
  } else if (!options.table.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--all-tables means `", options.table, "` too: name it, or not"));
  }
  return meant;
}

absl::StatusOr<std::vector<std::string>> AllTables(const SetOptions& options) {
  struct Part {
    uint32_t server = 0;
    std::string address;
    absl::StatusOr<v1::StatusResponse> done;
  };
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<Part> parts,
                             AskServers<Part>(options.address, options.timeout_ms, [&](const std::string& server) {
                               return FetchStatus(server, options.timeout_ms);
                             }));
  std::set<std::string> names;
  for (const Part& part : parts) {
    LODESTONE_RETURN_IF_ERROR(part.done.status());
    for (const v1::TableStatus& table : part.done->tables()) names.insert(table.name());
  }
  if (names.empty()) return absl::NotFoundError("there are no tables yet");
  return std::vector<std::string>(names.begin(), names.end());
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
    settings.clear_revision();  // It says when a ps got them.
    if (!first.has_value()) {
      std::fputs(SettingsText(settings).c_str(), stdout);
      first = std::move(settings);
    } else if (const std::string other = Differences(*first, settings); !other.empty()) {
      std::printf("ps %u has other settings: %s\n", part.server, Printable(other).c_str());
    }
  }
}

nlohmann::ordered_json ToJson(const std::string& table, const std::vector<SetPart>& parts) {
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
  return nlohmann::ordered_json{{"table", table}, {"servers", std::move(servers)}};
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

// Sets one table after another, and says what came of it. With `pause` no worker trains meanwhile.
int SetTables(const SetOptions& options, const std::vector<Planned>& tables, v1::SetTableRequest request,
              HeldPause* pause) {
  const bool changes = request.fields_size() > 0 || request.released_size() > 0;
  const TableSetter setter(options.address, options.timeout_ms);
  const auto tell_wait = [](const std::string& what) {
    Complain(kSet, absl::StrCat("tries again, training pauses: ", what));
  };
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  int code = kExitDone;
  for (const auto& [table, now] : tables) {
    request.set_table(table);
    request.mutable_settings()->set_revision(now.revision());
    const auto parts = pause == nullptr ? setter.Set(request) : setter.SetWhileAtRest(request, pause, tell_wait);
    if (!parts.ok()) return Fail(kSet, parts.status());
    if (options.json) {
      all.push_back(ToJson(table, *parts));
    } else {
      if (tables.size() > 1)
        std::printf("%stable %s\n", &table == &tables.front().table ? "" : "\n", Printable(table).c_str());
      PrintText(*parts, changes);
    }
    code = std::max(code, Judge(*parts, changes));
  }
  if (options.json) {
    std::fputs(IndentedJson(tables.size() == 1 ? all[0] : nlohmann::ordered_json{{"tables", std::move(all)}}).c_str(),
               stdout);
  }
  return code;
}

// The same with a pause of training around it.
int SetAtRest(const SetOptions& options, const std::vector<Planned>& tables, const v1::SetTableRequest& request) {
  const SteadyTime time;
  HeldPause pause(options.address, options.timeout_ms);
  const auto code_of = [&](int code) { return code != kExitDone && pause.interrupted() ? kExitInterrupted : code; };
  if (const absl::Status rests = pause.AwaitRest(options.timeout_ms); !rests.ok()) return code_of(Fail(kSet, rests));
  const int64_t began_ms = time.NowMs();
  const int code = code_of(SetTables(options, tables, request, &pause));
  const absl::Status ended = pause.End();
  const double seconds = static_cast<double>(time.NowMs() - began_ms) / 1000;
  if (!ended.ok()) {
    Complain(kSet, absl::StrCat("the end of the pause was not confirmed, and it ends by itself: ", ended.message()));
    return std::max(code, kExitFailed);
  }
  if (!options.json) std::printf("workers that train paused for it, for %.2f s\n", seconds);
  return code;
}

}  // namespace

absl::StatusOr<v1::SetTableRequest> MakeSetRequest(const SetOptions& options) {
  LODESTONE_ASSIGN_OR_RETURN(const Meant meant, MeantBy(options));
  v1::SetTableRequest request;
  YamlReader reader(request.mutable_settings());
  for (const std::string& assignment : meant.assignments) {
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
  absl::StatusOr<Meant> meant = MeantBy(options);
  if (!meant.ok()) return FailUsage(kSet, meant.status().message());
  if (options.all_tables) {
    absl::StatusOr<std::vector<std::string>> all = AllTables(options);
    if (!all.ok()) return Fail(kSet, all.status());
    meant->tables = *std::move(all);
  }
  if (request->fields_size() == 0 && request->released_size() == 0) {
    std::vector<Planned> shown;
    for (const std::string& table : meant->tables) shown.push_back({table, {}});
    return SetTables(options, shown, *request, nullptr);
  }
  const TableSetter setter(options.address, options.timeout_ms);
  bool pauses = false;
  std::vector<SetPart> failing;
  std::vector<Planned> tables;
  for (const std::string& table : meant->tables) {
    const auto parts = setter.Ask(table);
    if (!parts.ok()) return Fail(kSet, parts.status());
    if (const absl::Status known = CheckVersions(*parts); !known.ok()) return Fail(kSet, known);
    pauses = pauses || ChangesSteps(*request, *parts);
    tables.push_back({table, NewestOf(*parts)});
    if (HasFailed(*parts) && failing.empty()) failing = *parts;
  }
  if (!pauses) return SetTables(options, tables, *request, nullptr);
  if (!failing.empty()) return Judge(failing, /*changes=*/false);
  std::vector<Planned> others;
  if (!options.all_tables) {
    const absl::StatusOr<std::vector<std::string>> all = AllTables(options);
    if (!all.ok()) return Fail(kSet, all.status());
    for (const std::string& table : *all) {
      if (std::find(meant->tables.begin(), meant->tables.end(), table) != meant->tables.end()) continue;
      const auto parts = setter.Ask(table);
      if (!parts.ok()) return Fail(kSet, parts.status());
      others.push_back({table, NewestOf(*parts)});
    }
  }
  if (const absl::Status may = CheckSteps(*request, tables, others); !may.ok()) return Fail(kSet, may);
  return SetAtRest(options, tables, *request);
}

const Verb kSetVerb = {
    kSet, "Changes settings of a table while it is trained, or prints them: its learning rate, consistency, guard, …",
    "  psctl set embedding optimizer.learning_rate=0.01       a lower learning rate while training goes on\n"
    "  psctl set embedding                                    prints the settings of table embedding\n"
    "  psctl set --all-tables 'consistency={sync: {batches: 4}}'  synchronous steps from now on\n",
    [](CLI::App* command) -> Verb::Run {
      const auto options = std::make_shared<SetOptions>();
      command->add_option("TABLE", options->table, "Its name; several with commas; psctl tables lists them");
      command->add_flag(
          "--all-tables", options->all_tables,
          "All tables instead. Synchronous steps and tokens are of all tables of a model: training pauses "
          "for a moment when they begin or end, if its workers lease their samples (train.sharing: "
          "ranges)");
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
