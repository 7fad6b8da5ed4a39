#include "common/telemetry/log.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <ctime>
#include <iterator>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/utf8.h"
#include "common/telemetry/stderr_sink.h"
#include "fmt/format.h"
#include "proto/config.pb.h"
#include "spdlog/logger.h"

namespace lodestone {
namespace {

using Arguments = std::vector<fmt::basic_format_arg<fmt::format_context>>;

constexpr std::array<std::string_view, 5> kLevelNames = {"TRACE", "DEBUG", "INFO", "WARN", "ERROR"};

// Names of the line's own members in JSON; a field of such a name gets "_" at its end.
constexpr std::array<std::string_view, 6> kReservedKeys = {"ts", "level", "role", "id", "component", "msg"};

// One piece of an event: the message (empty key) or a key=value pair.
struct Field {
  std::string key;
  std::string value;
  bool is_number = false;  // The value is one number or bool, to be written without quotes in JSON.
};

// Who writes, how, and where to. Thread-safe; lives as long as the process, so that destructors may log.
class Log {
 public:
  Log() : stderr_(std::make_shared<StderrSink>(STDERR_FILENO)), logger_("lodestone", stderr_) {
    logger_.set_level(spdlog::level::trace);
    logger_.set_pattern("%v");
  }

  void Configure(LogLevel level, bool json, std::string role, std::string id) {
    MutexLock lock(&mu_);
    level_.store(level, std::memory_order_relaxed);
    json_.store(json, std::memory_order_relaxed);
    role_ = std::move(role);
    id_ = std::move(id);
  }

  void SetId(std::string id) {
    MutexLock lock(&mu_);
    id_ = std::move(id);
  }

  void SetLevel(LogLevel level) { level_.store(level, std::memory_order_relaxed); }

  void SetSink(LogSink sink) {
    std::unique_lock lock(sink_mu_);
    sink_ = std::move(sink);
  }

  bool Enabled(LogLevel level) const { return level >= level_.load(std::memory_order_relaxed); }

  void Write(LogLevel level, std::string_view component, const std::vector<Field>& fields);

 private:
  void WriteLine(LogLevel level, std::string_view component, const std::vector<Field>& fields);
  std::string TextLine(std::string_view level, std::string_view component, const std::vector<Field>& fields);
  std::string JsonLine(std::string_view level, std::string_view component, const std::vector<Field>& fields);

  // These synchronise themselves.
  const std::shared_ptr<StderrSink> stderr_;
  spdlog::logger logger_;
  std::atomic<LogLevel> level_{LogLevel::INFO};
  std::atomic<bool> json_{false};
  // Held shared while the sink runs, so that sinks run side by side.
  std::shared_mutex sink_mu_;
  LogSink sink_;
  // Guarded by mu_.
  Mutex mu_;
  std::string role_ ABSL_GUARDED_BY(mu_);
  std::string id_ ABSL_GUARDED_BY(mu_);
};

Log& TheLog() {
  static Log* const log = new Log;
  return *log;
}

// "2026-11-21T04:00:00.123Z".
std::string Now() {
  const auto since_epoch = std::chrono::system_clock::now().time_since_epoch();
  const int64_t ms = std::chrono::duration_cast<std::chrono::milliseconds>(since_epoch).count();
  const std::time_t seconds = static_cast<std::time_t>(ms / 1000);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
                     utc.tm_hour, utc.tm_min, utc.tm_sec, ms % 1000);
}

// Appends `text` with quotes, backslashes and control characters escaped as in JSON. Bytes that are not UTF-8 become
// U+FFFD, so that a line is always valid JSON.
void AppendEscaped(std::string_view text, std::string* out) {
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x80) {
      if (byte == '"' || byte == '\\') {
        out->append({'\\', static_cast<char>(byte)});
      } else if (byte == '\n') {
        out->append("\\n");
      } else if (byte == '\t') {
        out->append("\\t");
      } else if (byte < 0x20 || byte == 0x7f) {
        fmt::format_to(std::back_inserter(*out), "\\u{:04x}", byte);
      } else {
        out->push_back(static_cast<char>(byte));
      }
      ++i;
      continue;
    }
    const size_t length = Utf8Length(text, i);
    out->append(length > 0 ? text.substr(i, length) : std::string_view("\xef\xbf\xbd"));
    i += std::max<size_t>(length, 1);
  }
}

bool IsKeyStart(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

// The length of "key" if `text` starts with "key=", else 0.
size_t KeyLength(std::string_view text) {
  if (text.empty() || !IsKeyStart(text[0])) return 0;
  size_t i = 1;
  while (i < text.size() && (IsKeyStart(text[i]) || (text[i] >= '0' && text[i] <= '9') || text[i] == '.')) ++i;
  return i < text.size() && text[i] == '=' ? i : 0;
}

// The end of the word of `format` that starts at `begin`: a space outside replacement fields, or the end.
size_t WordEnd(std::string_view format, size_t begin) {
  int depth = 0;
  size_t i = begin;
  for (; i < format.size() && (depth > 0 || format[i] != ' '); ++i) {
    if (format[i] == '{') ++depth;
    if (format[i] == '}') --depth;
  }
  return i;
}

// How many arguments `format` takes, which numbers them automatically: one for each "{" that is not escaped.
int ArgumentCount(std::string_view format) {
  int count = 0;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '{') continue;
    if (i + 1 < format.size() && format[i + 1] == '{') {
      ++i;
    } else {
      ++count;
    }
  }
  return count;
}

// Formats `piece` with the next arguments.
std::string FormatPiece(std::string_view piece, const Arguments& arguments, int* next) {
  const int count = std::min(ArgumentCount(piece), static_cast<int>(arguments.size()) - *next);
  const fmt::format_args own(arguments.data() + *next, count);
  *next += count;
  return fmt::vformat(fmt::string_view(piece.data(), piece.size()), own);
}

// Whether text, formatted from an arithmetic argument, is a JSON number or bool as it stands.
bool IsJsonNumber(std::string_view text) {
  if (text == "true" || text == "false") return true;
  size_t i = text.starts_with('-') ? 1 : 0;
  const auto digits = [&] {
    const size_t begin = i;
    while (i < text.size() && text[i] >= '0' && text[i] <= '9') ++i;
    return i - begin;
  };
  const size_t integer_begin = i;
  const size_t integer_digits = digits();
  if (integer_digits == 0 || (integer_digits > 1 && text[integer_begin] == '0')) return false;
  if (i < text.size() && text[i] == '.') {
    ++i;
    if (digits() == 0) return false;
  }
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    if (i < text.size() && (text[i] == '+' || text[i] == '-')) ++i;
    if (digits() == 0) return false;
  }
  return i == text.size();
}

// Formats an event piece by piece, so that no argument's text can pass for another field. The message comes first.
std::vector<Field> FormatFields(std::string_view format, const Arguments& arguments) {
  std::vector<Field> fields(1);
  int next = 0;
  for (size_t i = 0; i < format.size();) {
    if (format[i] == ' ') {
      ++i;
      continue;
    }
    const size_t end = WordEnd(format, i);
    const std::string_view word = format.substr(i, end - i);
    i = end;
    const size_t key_length = KeyLength(word);
    if (key_length == 0) {
      std::string& message = fields[0].value;
      if (!message.empty()) message += ' ';
      message += FormatPiece(word, arguments, &next);
      continue;
    }
    const std::string_view piece = word.substr(key_length + 1);
    const bool one_argument = piece.starts_with('{') && piece.ends_with('}') && ArgumentCount(piece) == 1;
    const bool arithmetic =
        one_argument && next < static_cast<int>(arguments.size()) && arguments[next].is_arithmetic();
    Field field{std::string(word.substr(0, key_length)), FormatPiece(piece, arguments, &next)};
    field.is_number = arithmetic && IsJsonNumber(field.value);
    fields.push_back(std::move(field));
  }
  return fields;
}

// Appends a value of a text line, quoted if it would be ambiguous in the line.
void AppendTextValue(std::string_view value, std::string* out) {
  const bool plain = !value.empty() && std::all_of(value.begin(), value.end(), [](char c) {
    return static_cast<unsigned char>(c) > ' ' && c != '"' && c != '\\' && c != 0x7f;
  });
  if (plain) {
    out->append(value);
    return;
  }
  out->push_back('"');
  AppendEscaped(value, out);
  out->push_back('"');
}

void AppendJsonMember(std::string_view key, std::string_view value, bool is_number, std::string* out) {
  out->append(out->empty() ? "{\"" : ",\"");
  AppendEscaped(key, out);
  out->append(is_number ? "\":" : "\":\"");
  if (is_number) {
    out->append(value);
  } else {
    AppendEscaped(value, out);
    out->push_back('"');
  }
}

// The message and the pairs of an event.
std::string EventText(const std::vector<Field>& fields) {
  std::string text;
  for (const char c : fields[0].value) {  // For people: quotes stay as they are, but nothing may start a new line.
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) {
      AppendEscaped(std::string_view(&c, 1), &text);
    } else {
      text += c;
    }
  }
  for (size_t i = 1; i < fields.size(); ++i) {
    text.append(" ").append(fields[i].key).append("=");
    AppendTextValue(fields[i].value, &text);
  }
  return text;
}

std::string Log::TextLine(std::string_view level, std::string_view component, const std::vector<Field>& fields) {
  std::string line = fmt::format("{} {:<5} ", Now(), fmt::string_view(level.data(), level.size()));
  {
    MutexLock lock(&mu_);
    if (!role_.empty()) line.append(role_).append("=").append(id_.empty() ? "?" : id_).append(" ");
  }
  line.append(component).append(":");
  const std::string text = EventText(fields);
  if (!fields[0].value.empty()) line += ' ';
  return line + text;
}

std::string Log::JsonLine(std::string_view level, std::string_view component, const std::vector<Field>& fields) {
  std::string line;
  AppendJsonMember("ts", Now(), false, &line);
  AppendJsonMember("level", level, false, &line);
  {
    MutexLock lock(&mu_);
    if (!role_.empty()) AppendJsonMember("role", role_, false, &line);
    if (!id_.empty()) AppendJsonMember("id", id_, false, &line);
  }
  AppendJsonMember("component", component, false, &line);
  AppendJsonMember("msg", fields[0].value, false, &line);
  for (size_t i = 1; i < fields.size(); ++i) {
    const bool reserved = std::find(kReservedKeys.begin(), kReservedKeys.end(), fields[i].key) != kReservedKeys.end();
    AppendJsonMember(reserved ? fields[i].key + "_" : fields[i].key, fields[i].value, fields[i].is_number, &line);
  }
  return line + "}";
}

void Log::Write(LogLevel level, std::string_view component, const std::vector<Field>& fields) {
  {
    std::shared_lock lock(sink_mu_);
    if (sink_ != nullptr) {
      sink_(level, std::string(component), EventText(fields));
      return;
    }
  }
  if (const uint64_t lost = stderr_->TakeLost(); lost > 0) {
    WriteLine(
        LogLevel::WARN, "log",
        {{"", "lines are missing here: nothing read standard error", false}, {"lines", std::to_string(lost), true}});
  }
  WriteLine(level, component, fields);
}

void Log::WriteLine(LogLevel level, std::string_view component, const std::vector<Field>& fields) {
  const std::string_view name = kLevelNames[static_cast<size_t>(level)];
  const std::string line =
      json_.load(std::memory_order_relaxed) ? JsonLine(name, component, fields) : TextLine(name, component, fields);
  logger_.log(spdlog::level::critical, spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace

void InitLog(const v1::LogConfig& config, std::string role, std::string id) {
  TheLog().Configure(static_cast<LogLevel>(config.level()), config.json(), std::move(role), std::move(id));
}

void SetLogId(std::string id) { TheLog().SetId(std::move(id)); }

void SetLogLevel(LogLevel level) { TheLog().SetLevel(level); }

void SetLogSink(LogSink sink) { TheLog().SetSink(std::move(sink)); }

bool LogEnabled(LogLevel level) { return TheLog().Enabled(level); }

void WriteLog(LogLevel level, std::string_view component, std::string_view format, fmt::format_args arguments) {
  if (!LogEnabled(level)) return;
  Arguments all;
  for (int i = 0; arguments.get(i); ++i) all.push_back(arguments.get(i));
  TheLog().Write(level, component, FormatFields(format, all));
}

}  // namespace lodestone
