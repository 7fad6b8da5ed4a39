#include "common/telemetry/metrics.h"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "common/base/version.h"
#include "prometheus/metric_family.h"
#include "prometheus/text_serializer.h"

namespace lodestone {
namespace {

// The newest variable. They are made before main runs, in no fixed order.
constinit std::atomic<const Metric*> newest{nullptr};

prometheus::ClientMetric WithLabels(const MetricLabels& labels) {
  prometheus::ClientMetric metric;
  for (const auto& [name, value] : labels) metric.label.push_back({name, value});
  return metric;
}

prometheus::ClientMetric::Histogram FromHistogram(const Histogram& histogram) {
  const Histogram::Snapshot snapshot = histogram.snapshot();
  prometheus::ClientMetric::Histogram out;
  out.sample_count = snapshot.count;
  out.sample_sum = snapshot.sum;
  uint64_t up_to = 0;
  for (size_t i = 0; i < Histogram::kBounds; ++i) {
    up_to += snapshot.counts[i];
    out.bucket.push_back({up_to, histogram.bound(i)});
  }
  out.bucket.push_back({snapshot.count, std::numeric_limits<double>::infinity()});
  return out;
}

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

// File descriptors that are open; nullopt if unknown.
std::optional<size_t> OpenFiles() {
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return std::nullopt;
  size_t entries = 0;
  while (readdir(folder) != nullptr) ++entries;
  closedir(folder);
  return entries < 3 ? 0 : entries - 3;  // Without ".", ".." and the one that reads.
}

// Fields of /proc/self/stat behind the name, which may hold anything: the first is the third of the file.
std::vector<double> StatFields() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  std::istringstream rest(line.substr(std::min(line.size(), line.rfind(')') + 2)));
  std::string state;
  rest >> state;
  std::vector<double> fields = {0};
  for (double field; rest >> field;) fields.push_back(field);
  return fields;
}

// When the system started, in seconds since 1970; 0 if unknown.
double BootTime() {
  std::ifstream file("/proc/stat");
  double time = 0;
  for (std::string word; file >> word;) {
    if (word == "btime" && file >> time) break;
  }
  return time;
}

}  // namespace

Metric::Metric(Kind kind, const char* name, const char* help, MetricLabels labels)
    : kind_(kind), name_(name), help_(help), labels_(std::move(labels)), next_(newest.load()) {
  while (!newest.compare_exchange_weak(next_, this)) {
  }
}

MetricFamilies::MetricFamilies() = default;
MetricFamilies::~MetricFamilies() = default;

prometheus::MetricFamily* MetricFamilies::FamilyOf(const char* name, const char* help) {
  const auto [at, fresh] = index_.try_emplace(name, families_.size());
  if (fresh) {
    families_.emplace_back();
    families_.back().name = name;
    families_.back().help = help;
  }
  return &families_[at->second];
}

void MetricFamilies::Add(const char* name, const char* help, Type type, double value, const MetricLabels& labels) {
  prometheus::MetricFamily* const family = FamilyOf(name, help);
  family->type = type == Type::kCounter ? prometheus::MetricType::Counter : prometheus::MetricType::Gauge;
  prometheus::ClientMetric metric = WithLabels(labels);
  metric.counter.value = metric.gauge.value = value;
  family->metric.push_back(std::move(metric));
}

void MetricFamilies::AddVariables() {
  for (const Metric* variable = newest.load(); variable != nullptr; variable = variable->next_) {
    if (variable->kind_ == Metric::Kind::kCounter) {
      Add(variable->name_, variable->help_, Type::kCounter,
          static_cast<double>(static_cast<const CounterMetric*>(variable)->value()), variable->labels_);
      continue;
    }
    prometheus::MetricFamily* const family = FamilyOf(variable->name_, variable->help_);
    family->type = prometheus::MetricType::Histogram;
    prometheus::ClientMetric metric = WithLabels(variable->labels_);
    metric.histogram = FromHistogram(*static_cast<const HistogramMetric*>(variable));
    family->metric.push_back(std::move(metric));
  }
  std::sort(families_.begin(), families_.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (size_t i = 0; i < families_.size(); ++i) {
    index_[families_[i].name] = i;
    std::sort(families_[i].metric.begin(), families_[i].metric.end(),
              [](const auto& a, const auto& b) { return a.label < b.label; });
  }
}

void MetricFamilies::AddProcess() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  Add("process_cpu_seconds_total", "CPU time of this process, its own and the system's for it.", Type::kCounter,
      Seconds(usage.ru_utime) + Seconds(usage.ru_stime));
  const std::vector<double> stat = StatFields();
  constexpr size_t kStartTicks = 22 - 3, kVirtualBytes = 23 - 3, kResidentPages = 24 - 3;  // proc(5) counts from 1.
  if (stat.size() > kResidentPages) {
    Add("process_start_time_seconds", "When this process started, in seconds since 1970.", Type::kGauge,
        BootTime() + stat[kStartTicks] / static_cast<double>(sysconf(_SC_CLK_TCK)));
    Add("process_virtual_memory_bytes", "Address space of this process.", Type::kGauge, stat[kVirtualBytes]);
    Add("process_resident_memory_bytes", "Resident memory of this process.", Type::kGauge,
        stat[kResidentPages] * static_cast<double>(sysconf(_SC_PAGESIZE)));
  }
  if (const std::optional<size_t> files = OpenFiles()) {
    Add("process_open_fds", "File descriptors that are open.", Type::kGauge, static_cast<double>(*files));
  }
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    Add("process_max_fds", "File descriptors that may be open.", Type::kGauge, static_cast<double>(limit.rlim_cur));
  }
  Add("lodestone_build_info", "Always 1; its labels say which program this is.", Type::kGauge, 1,
      {{"version", kVersion}});
}

std::string MetricFamilies::Text() const { return prometheus::TextSerializer().Serialize(families_); }

}  // namespace lodestone
