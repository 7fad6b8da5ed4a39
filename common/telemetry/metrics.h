// Numbers of this process for Prometheus, and the text in which it reads them.
//
// What is counted while the process works is a variable of the file that counts it:
//
//   HistogramMetric wait("lodestone_ps_executor_wait_duration_seconds", "From a message's coming to its run.");
//   ...
//   wait.ObserveNs(NowNs() - queued_ns);
//
// and that is all there is to do: /metrics has them all. They belong to the process, which is one ps or worker as a
// rule. What is known already, from a status say, is added when it is asked for.
//
// Names are those of Prometheus' conventions: lodestone_ps_pushes_total, units _seconds and _bytes; labels have few
// values, which do not grow with keys, clients or time. `promtool check metrics` reads them in the tests.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/telemetry/histogram.h"

namespace prometheus {
struct MetricFamily;
}  // namespace prometheus

namespace lodestone {

// Names of labels, and their values.
using MetricLabels = std::vector<std::pair<std::string, std::string>>;

// What both kinds of variables share. REQUIRES: lives until the process ends.
class Metric {
 public:
  Metric(const Metric&) = delete;
  Metric& operator=(const Metric&) = delete;

 protected:
  friend class MetricFamilies;
  enum class Kind { kCounter, kHistogram };
  Metric(Kind kind, const char* name, const char* help, MetricLabels labels);
  ~Metric() = default;

 private:
  const Kind kind_;
  const char* const name_;
  const char* const help_;
  const MetricLabels labels_;
  const Metric* next_;  // Made before this one.
};

// Something that only grows. Thread-safe.
class CounterMetric final : public Metric {
 public:
  CounterMetric(const char* name, const char* help, MetricLabels labels = {})
      : Metric(Kind::kCounter, name, help, std::move(labels)) {}
  void Add(uint64_t more) { value_.fetch_add(more, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  alignas(64) std::atomic<uint64_t> value_{0};
};

// Sizes of something. Thread-safe; several of one name with other labels are one family.
class HistogramMetric final : public Metric, public Histogram {
 public:
  HistogramMetric(const char* name, const char* help, MetricLabels labels = {}, Of of = Of::kSeconds)
      : Metric(Kind::kHistogram, name, help, std::move(labels)), Histogram(of) {}
};

// The metrics of one scrape. Not thread-safe.
class MetricFamilies {
 public:
  enum class Type { kCounter, kGauge };

  // The type of the text, for HTTP.
  static constexpr char kContentType[] = "text/plain; version=0.0.4; charset=utf-8";

  MetricFamilies();
  ~MetricFamilies();

  // Adds a value to the family of that name; what the first call says of the family counts.
  void Add(const char* name, const char* help, Type type, double value, const MetricLabels& labels = {});
  // Adds the process's variables. Last of all, so that what others have counted has been observed.
  void AddVariables();
  // Adds what the system knows of the process, by the names that Prometheus' own clients use, and which program it is.
  void AddProcess();

  std::string Text() const;

 private:
  prometheus::MetricFamily* FamilyOf(const char* name, const char* help);

  std::vector<prometheus::MetricFamily> families_;
  std::map<std::string, size_t> index_;  // Into families_, by name.
};

}  // namespace lodestone
