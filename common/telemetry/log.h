// Logs of both processes. One line per event on standard error:
//   2026-11-21T04:00:00.123Z INFO  ps=0 coordinator: joined server=1 address=10.0.0.7:7000
// or, with log.json, one JSON object per line that holds the same and every key=value as a field of its own. Lines that
// find no room there for long are lost, and a later line says how many (stderr_sink.h).
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "fmt/core.h"

namespace lodestone::v1 {
class LogConfig;
}  // namespace lodestone::v1

namespace lodestone {

// How severe an event is; the same values as v1::LogConfig::Level.
enum class LogLevel { TRACE = 0, DEBUG = 1, INFO = 2, WARN = 3, ERROR = 4 };

// Sets level and form of all further lines, and the process that writes them: `role` is "ps", "worker", ...; `id` its
// index, or empty while that is unknown. Without a call, lines are text, at INFO, without role and id. Thread-safe; may
// be called again.
void InitLog(const v1::LogConfig& config, std::string role, std::string id);

// Changes the id alone, once it is known. Thread-safe.
void SetLogId(std::string id);

// Changes the level alone. Thread-safe.
void SetLogLevel(LogLevel level);

// Receives events in place of standard error: `text` is the message and the key=value pairs, without time and level.
// Called on any thread, several at a time; must not log.
using LogSink = std::function<void(LogLevel level, const std::string& component, const std::string& text)>;
// null: standard error. Returns when the former sink does not run any more. Thread-safe; not from a sink.
void SetLogSink(LogSink sink);

// Whether a line of this level would be written. Thread-safe and cheap.
bool LogEnabled(LogLevel level);

// Writes a line; see LODESTONE_LOG. Thread-safe: lines never mix.
void WriteLog(LogLevel level, std::string_view component, std::string_view format, fmt::format_args arguments);

// The checked form of WriteLog: a format that does not fit its arguments does not compile.
template <typename... Args>
void WriteLogChecked(LogLevel level, std::string_view component, fmt::format_string<Args...> format, Args&&... args) {
  const fmt::string_view text = format;
  WriteLog(level, component, std::string_view(text.data(), text.size()), fmt::make_format_args(args...));
}

}  // namespace lodestone

// Logs an event: LODESTONE_LOG(INFO, "coordinator", "server joined server={} address={}", index, address).
// The format is a message (which may hold {} too), then key=value pairs whose values hold {} with fmt's syntax,
// arguments numbered automatically. A value may be any text: it is quoted and escaped where that is needed to read it
// back. Arguments are evaluated only if the level is written.
#define LODESTONE_LOG(level, component, ...)                                              \
  do {                                                                                    \
    if (::lodestone::LogEnabled(::lodestone::LogLevel::level)) {                          \
      ::lodestone::WriteLogChecked(::lodestone::LogLevel::level, component, __VA_ARGS__); \
    }                                                                                     \
  } while (false)
