#include "tools/psctl/completion_scripts.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace lodestone::psctl {
namespace {

using Kind = CompletedValue::Kind;

// Between single quotes of a shell.
std::string Quoted(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}
std::string FishQuoted(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}}), "'");
}

// What the bash functions below call a value: "file", "words a b".
std::string BashValue(const CompletedValue& value) {
  switch (value.kind) {
    case Kind::kFile:
      return "file";
    case Kind::kFolder:
      return "dir";
    case Kind::kWord:
      return absl::StrCat("words ", absl::StrJoin(value.words, " "));
    case Kind::kAnything:
      break;
  }
  return "any";
}

constexpr char kBashMain[] = R"sh(
_psctl() {
  local cur=${COMP_WORDS[COMP_CWORD]} verb= kind= arguments=0 skip= i word
  for ((i = 1; i < COMP_CWORD; ++i)); do
    word=${COMP_WORDS[i]}
    if [[ $skip ]]; then skip=; continue; fi
    # bash splits words at these too: --flag=value, host:port.
    if [[ $word == "=" ]]; then continue; fi
    if [[ $word == ":" ]]; then skip=1; continue; fi
    if [[ $kind ]]; then kind=; continue; fi
    case $word in
      -*) kind=$(_psctl_value "$verb" "$word") ;;
      *) if [[ $verb ]]; then arguments=$((arguments + 1)); else verb=$word; fi ;;
    esac
  done
  if [[ $cur == "=" ]]; then cur=; fi
  if [[ ! $kind ]]; then
    if [[ $cur == -* ]]; then
      kind="words $(_psctl_flags "$verb")"
    elif [[ $verb ]]; then
      kind=$(_psctl_argument "$verb" "$arguments")
    else
      kind="words $_psctl_verbs"
    fi
  fi
  COMPREPLY=()
  case $kind in
    file) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
    dir) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
    words\ *) mapfile -t COMPREPLY < <(compgen -W "${kind#words }" -- "$cur") ;;
  esac
}
complete -F _psctl psctl
)sh";

constexpr char kZshMain[] = R"sh(
  local context state line
  typeset -A opt_args
  _arguments -C "${globals[@]}" '1: :->verb' '*:: :->arguments'
  case $state in
    verb) _describe -t verbs 'psctl verb' verbs ;;
    arguments) _psctl_of_verb $line[1] ;;
  esac
}
if [ "$funcstack[1]" = _psctl ]; then _psctl "$@"; else compdef _psctl psctl; fi
)sh";

// What zsh's _arguments calls a value, after a colon: "file:_files".
std::string ZshValue(const CompletedValue& value) {
  switch (value.kind) {
    case Kind::kFile:
      return "file:_files";
    case Kind::kFolder:
      return "folder:_files -/";
    case Kind::kWord:
      return absl::StrCat("word:(", absl::StrJoin(value.words, " "), ")");
    case Kind::kAnything:
      break;
  }
  return "value: ";
}

// "'--flag=[what it does]:file:_files'", one for each name.
std::string ZshFlag(const CompletedFlag& flag) {
  std::string specs;
  const std::string description =
      absl::StrReplaceAll(flag.description, {{"\\", "\\\\"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}});
  for (const std::string& name : flag.names) {
    const bool is_long = name.size() > 2;
    const std::string spec = absl::StrCat("*", name, flag.takes_value ? (is_long ? "=" : "+") : "", "[", description,
                                          "]", flag.takes_value ? absl::StrCat(":", ZshValue(flag.value)) : "");
    absl::StrAppend(&specs, " ", Quoted(spec));
  }
  return specs;
}

std::string ZshFlags(const CompletedVerb& verb) {
  std::string specs;
  for (const CompletedFlag& flag : verb.flags) absl::StrAppend(&specs, " \\\n       ", ZshFlag(flag));
  return specs;
}

// What fish's `complete` is given of a value.
std::string FishValue(const CompletedValue& value) {
  switch (value.kind) {
    case Kind::kFile:
      return " -r -F";
    case Kind::kFolder:
      return " -x -a '(__fish_complete_directories)'";
    case Kind::kWord:
      return absl::StrCat(" -x -a ", FishQuoted(absl::StrJoin(value.words, " ")));
    case Kind::kAnything:
      break;
  }
  return " -x";
}

}  // namespace

std::string BashCompletion(const std::vector<CompletedVerb>& verbs) {
  std::string names, values, flags, arguments;
  for (const CompletedVerb& verb : verbs) {
    if (!verb.name.empty()) absl::StrAppend(&names, names.empty() ? "" : " ", verb.name);
    std::string all;
    for (const CompletedFlag& flag : verb.flags) {
      for (const std::string& name : flag.names) {
        absl::StrAppend(&all, all.empty() ? "" : " ", name);
        if (!flag.takes_value) continue;
        absl::StrAppend(&values, "    ", Quoted(absl::StrCat(verb.name, " ", name)), ") echo ",
                        Quoted(BashValue(flag.value)), " ;;\n");
      }
    }
    absl::StrAppend(&flags, "    ", Quoted(verb.name), ") echo ", Quoted(all), " ;;\n");
    for (size_t i = 0; i < verb.arguments.size(); ++i) {
      absl::StrAppend(&arguments, "    ", Quoted(absl::StrCat(verb.name, " ", i)), ") echo ",
                      Quoted(BashValue(verb.arguments[i])), " ;;\n");
    }
  }
  return absl::StrCat(
      "# bash completion of psctl. To have it in every shell: eval \"$(psctl completion bash)\" in ~/.bashrc\n",
      "_psctl_verbs=", Quoted(names), "\n# What follows a flag of a verb; nothing if it takes no value.\n",
      "_psctl_value() {\n  case \"$1 $2\" in\n", values, "  esac\n}\n_psctl_flags() {\n  case \"$1\" in\n", flags,
      "  esac\n}\n# The argument of a verb after so many.\n_psctl_argument() {\n  case \"$1 $2\" in\n", arguments,
      "  esac\n}", kBashMain);
}

std::string ZshCompletion(const std::vector<CompletedVerb>& verbs) {
  std::string names, cases, globals;
  for (const CompletedVerb& verb : verbs) {
    if (verb.name.empty()) {
      globals = ZshFlags(verb);
      continue;
    }
    const std::string description = absl::StrReplaceAll(verb.description, {{":", "\\:"}});
    absl::StrAppend(&names, "\n    ", Quoted(absl::StrCat(verb.name, ":", description)));
    absl::StrAppend(&cases, "    ", verb.name, ")\n      _arguments", ZshFlags(verb));
    for (size_t i = 0; i < verb.arguments.size(); ++i) {
      absl::StrAppend(&cases, " \\\n        ", Quoted(absl::StrCat(i + 1, ":", ZshValue(verb.arguments[i]))));
    }
    absl::StrAppend(&cases, " ;;\n");
  }
  return absl::StrCat(
      "#compdef psctl\n# zsh completion of psctl. To have it in every shell, after compinit: eval \"$(psctl completion "
      "zsh)\" in ~/.zshrc\n_psctl_of_verb() {\n  case $1 in\n",
      cases, "  esac\n}\n_psctl() {\n  local -a verbs globals\n  verbs=(", names, "\n  )\n  globals=(", globals,
      "\n  )", kZshMain);
}

std::string FishCompletion(const std::vector<CompletedVerb>& verbs) {
  std::string text =
      "# fish completion of psctl. To have it in every shell: psctl completion fish > "
      "~/.config/fish/completions/psctl.fish\ncomplete -c psctl -e\ncomplete -c psctl -f\n";
  std::string names;
  for (const CompletedVerb& verb : verbs) {
    if (!verb.name.empty()) absl::StrAppend(&names, " ", verb.name);
  }
  for (const CompletedVerb& verb : verbs) {
    const std::string condition = verb.name.empty() ? absl::StrCat("not __fish_seen_subcommand_from", names)
                                                    : absl::StrCat("__fish_seen_subcommand_from ", verb.name);
    if (!verb.name.empty()) {
      absl::StrAppend(&text, "complete -c psctl -n ",
                      FishQuoted(absl::StrCat("not __fish_seen_subcommand_from", names)), " -a ", verb.name, " -d ",
                      FishQuoted(verb.description), "\n");
    }
    for (const CompletedFlag& flag : verb.flags) {
      absl::StrAppend(&text, "complete -c psctl -n ", FishQuoted(condition));
      for (const std::string& name : flag.names) {
        absl::StrAppend(&text, name.size() > 2 ? " -l " : " -s ", absl::StripPrefix(absl::StripPrefix(name, "-"), "-"));
      }
      absl::StrAppend(&text, flag.takes_value ? FishValue(flag.value) : "", " -d ", FishQuoted(flag.description), "\n");
    }
    // fish does not count arguments: whichever one can be is offered.
    for (const CompletedValue& value : verb.arguments) {
      if (value.kind == Kind::kAnything) continue;
      const std::string what = value.kind == Kind::kFile ? std::string(" -F") : FishValue(value);
      absl::StrAppend(&text, "complete -c psctl -n ", FishQuoted(condition), what, "\n");
    }
  }
  return text;
}

}  // namespace lodestone::psctl
