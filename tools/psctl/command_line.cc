#include "tools/psctl/command_line.h"

#include <cstdio>
#include <utility>
#include <vector>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "absl/strings/str_cat.h"
#include "common/config/suggest.h"
#include "tools/psctl/completion.h"
#include "tools/psctl/text/exit_code.h"
#include "tools/psctl/text/style.h"
#include "tools/psctl/verbs/check.h"
#include "tools/psctl/verbs/checkpoint.h"
#include "tools/psctl/verbs/events.h"
#include "tools/psctl/verbs/export.h"
#include "tools/psctl/verbs/health.h"
#include "tools/psctl/verbs/import.h"
#include "tools/psctl/verbs/listing.h"
#include "tools/psctl/verbs/local.h"
#include "tools/psctl/verbs/lost_shards.h"
#include "tools/psctl/verbs/moves.h"
#include "tools/psctl/verbs/predict.h"
#include "tools/psctl/verbs/replay.h"
#include "tools/psctl/verbs/rollback.h"
#include "tools/psctl/verbs/serve.h"
#include "tools/psctl/verbs/set.h"
#include "tools/psctl/verbs/status.h"
#include "tools/psctl/verbs/top.h"
#include "tools/psctl/verbs/verify.h"
#include "tools/psctl/verbs/why.h"

namespace lodestone::psctl {
namespace {

// All verbs, in the order of the help.
constexpr const Verb* kVerbs[] = {
    &kLocalVerb,  &kTopVerb,       &kStatusVerb,     &kTablesVerb,   &kWorkersVerb, &kWaitsVerb,      &kWhyVerb,
    &kEventsVerb, &kHealthVerb,    &kCheckpointVerb, &kRollbackVerb, &kPromoteVerb, &kAcceptLossVerb, &kMoveVerb,
    &kDrainVerb,  &kRebalanceVerb, &kAddVerb,        &kSetVerb,      &kVerifyVerb,  &kReplayVerb,     &kExportVerb,
    &kImportVerb, &kPredictVerb,   &kEvaluateVerb,   &kServeVerb,    &kCheckVerb,   &kCompletionVerb,
};

std::string Footer(const std::string& examples) { return absl::StrCat("Examples:\n", examples, "\n", kExitCodes); }

}  // namespace

CommandLine::CommandLine(const std::string& version)
    : app_(std::make_unique<CLI::App>("psctl runs, watches and checks Lodestone clusters.", "psctl")) {
  app_->set_version_flag("--version", version);
  app_->require_subcommand(1);
  AddGlobalFlags();
  std::string examples;
  for (const Verb* const verb : kVerbs) {
    Add(*verb);
    examples += verb->examples;
  }
  app_->footer(Footer(examples));
}

CommandLine::~CommandLine() = default;

int CommandLine::Run(int argc, const char* const* argv) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help or --version.
      app_->exit(error);
      return kExitDone;
    }
    return FailParse(error);
  }
  SetColorMode(color_ == "always" ? ColorMode::kAlways : color_ == "never" ? ColorMode::kNever : ColorMode::kAuto);
  if (const absl::Status used = UseSecurity(security_); !used.ok()) {
    std::fprintf(stderr, "psctl: %s\n", std::string(used.message()).c_str());
    return kExitUsage;
  }
  for (const auto& [verb, run] : verbs_) {
    if (verb->parsed()) return run();
  }
  return kExitUsage;
}

int CommandLine::FailParse(const std::exception& error) const {
  const std::vector<CLI::App*> called = app_->get_subcommands();
  const std::vector<std::string> rest = app_->remaining(/*recurse=*/true);
  if (called.empty() && rest.empty()) {
    std::fputs(app_->help().c_str(), stderr);
    return kExitUsage;
  }
  if (called.empty() && !rest.front().starts_with('-')) return FailUnknownVerb(rest.front());
  const CLI::App& app = called.empty() ? *app_ : *called.front();
  const std::string name = called.empty() ? "psctl" : absl::StrCat("psctl ", app.get_name());
  const std::string what = rest.empty() ? std::string(error.what()) : UnknownArgument(app, rest.front());
  std::fprintf(stderr, "%s: %s; %s --help has them all\n", name.c_str(), what.c_str(), name.c_str());
  return kExitUsage;
}

std::string CommandLine::UnknownArgument(const CLI::App& command, const std::string& argument) const {
  const auto option = [&command](const std::string& flag) { return command.get_option_no_throw(flag); };
  if (!argument.starts_with('-')) {
    const bool is_address = argument.find(':') != std::string::npos && option("--address") != nullptr;
    return absl::StrCat("unexpected argument ", argument,
                        is_address ? absl::StrCat(" (did you mean --address ", argument, "?)") : "");
  }
  std::vector<std::string> flags;
  for (const CLI::App* const from : {&command, static_cast<const CLI::App*>(app_.get())}) {
    for (const CLI::Option* const known : from->get_options()) {
      for (const std::string& flag : known->get_lnames()) flags.push_back("--" + flag);
    }
  }
  const std::string nearest = Nearest(argument.substr(0, argument.find('=')), flags);
  return absl::StrCat("unknown option ", argument,
                      nearest.empty() ? "" : absl::StrCat(" (did you mean ", nearest, "?)"));
}

int CommandLine::FailUnknownVerb(const std::string& name) const {
  std::vector<std::string> verbs;
  for (const auto& [verb, run] : verbs_) verbs.push_back(verb->get_name());
  const std::string nearest = Nearest(name, verbs);
  std::fprintf(stderr, "psctl: there is no verb `%s`%s; psctl --help has them\n", name.c_str(),
               nearest.empty() ? "" : absl::StrCat(" (did you mean `", nearest, "`?)").c_str());
  return kExitUsage;
}

void CommandLine::AddGlobalFlags() {
  app_->fallthrough();  // They may stand behind the verb too.
  app_->add_option("--color", color_, "Colours: auto has them on a terminal unless NO_COLOR is set")
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->type_name("WHEN")
      ->capture_default_str();
  AddSecurity(app_.get(), &security_);
}

void CommandLine::Add(const Verb& verb) {
  CLI::App* const command = app_->add_subcommand(verb.name, verb.help);
  command->footer(Footer(verb.examples));
  verbs_.emplace_back(command, verb.declare(command));
}

}  // namespace lodestone::psctl
