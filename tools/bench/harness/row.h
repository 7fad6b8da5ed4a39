// One line of the benchmark's result, and files of them.
//
// Thread safety: pure functions and plain values.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/bench/harness/stats.h"

namespace lodestone::bench {

// Which way a value is better.
enum class Better { kHigher, kLower, kNeither };

// A thing that rows tell. Not every row tells every one.
struct Metric {
  const char* key;    // In JSON and Row::values.
  const char* title;  // In tables.
  Better better;
  const char* meaning;  // For --help.
};

// All of them, in the order of the columns.
const std::vector<Metric>& Metrics();

// The metrics' keys.
inline constexpr char kRate[] = "rate";
inline constexpr char kMessages[] = "kmsg_per_s";
inline constexpr char kP50[] = "p50_us";
inline constexpr char kP99[] = "p99_us";
inline constexpr char kP999[] = "p999_us";
inline constexpr char kClientCpu[] = "client_cpu";
inline constexpr char kServerCpu[] = "server_cpu";
inline constexpr char kLimitRate[] = "limit_rate";
inline constexpr char kLimitP50[] = "limit_p50_us";
inline constexpr char kLimitP99[] = "limit_p99_us";
inline constexpr char kLimitCpu[] = "limit_cpu";
inline constexpr char kRatio[] = "ratio";
inline constexpr char kCpuRatio[] = "cpu_ratio";
inline constexpr char kP50Ratio[] = "p50_ratio";
inline constexpr char kP99Ratio[] = "p99_ratio";
inline constexpr char kServerCpuRatio[] = "server_cpu_ratio";
inline constexpr char kCopies[] = "client_copies";
inline constexpr char kServerCopies[] = "server_copies";
inline constexpr char kMemory[] = "extra_mb";
inline constexpr char kMemoryRatio[] = "memory_ratio";

struct Row {
  std::string bench;     // "dense".
  std::string name;      // "dense/push/1MiB/depth8/clients1"; unique in a report.
  std::string unit;      // Of the rates: "GB/s" (1e9 bytes), "Mkeys/s", "samples/s".
  std::string cpu_unit;  // Of the CPU times: "s/GB"; empty if there are none.
  int runs = 0;          // That the spreads are over.
  std::map<std::string, Spread> values;

  const Spread* Find(const std::string& metric) const;
};

// A run of the benchmark.
struct Report {
  // What the machine was, in words, by name: "cpu", "kernel", "load".
  std::map<std::string, std::string> machine;
  std::vector<Row> rows;
};

// One line of JSON, without its end.
std::string ToJson(const Row& row);
// The line that a file begins with: {"machine": {…}}.
std::string ToJson(const std::map<std::string, std::string>& machine);

// Reads lines of JSON. `name` stands for the file in errors, which name the line.
absl::StatusOr<Report> ParseReport(const std::string& text, const std::string& name);
// The same for a file.
absl::StatusOr<Report> ReadReport(const std::string& path);

}  // namespace lodestone::bench
