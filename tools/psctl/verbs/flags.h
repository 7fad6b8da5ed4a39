// The flags that several verbs share. What they set must outlive the command.
//
// Thread safety: not thread-safe; called while the command line is built.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace lodestone::psctl {

inline constexpr char kAnyPs[] = "host:port of any ps of the cluster";

// --address HOST:PORT.
CLI::Option* AddAddress(CLI::App* command, std::string* address, const std::string& help = kAnyPs);
// --json.
void AddJson(CLI::App* command, bool* json, const std::string& help = "Prints JSON");
// --timeout TIME, such as 250ms or 5s.
CLI::Option* AddTimeout(CLI::App* command, int* timeout_ms, const std::string& help = "How long to wait for answers");
// What is wrong with a number of things, 1 or more; empty if nothing is. For CLI::Option::check.
std::string CheckCount(const std::string& text);
// --set PATH=VALUE, which may be given several times.
void AddSet(CLI::App* command, std::vector<std::string>* sets);

}  // namespace lodestone::psctl
