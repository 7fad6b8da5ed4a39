// A cluster of real processes and what it tells over HTTP, with a real Prometheus that scrapes it.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "httplib.h"
#include "nlohmann/json.hpp"
#include "tests/cluster/psctl_run.h"
#include "tests/common/http/http_client.h"
#include "tests/common/rpc/reserved_port.h"
#include "tests/common/telemetry/metric_text.h"
#include "tests/configs/deployment.h"
#include "tests/configs/monitoring.h"
#include "tools/psctl/client/admin_client.h"

namespace lodestone {
namespace {

using nlohmann::json;
using testing::Contains;
using testing::SizeIs;

constexpr char kPrometheus[] = "/usr/bin/prometheus";
constexpr int kScrapesStatusMs = 60'000;
const char* const kNames[] = {"ps 0", "ps 1", "worker 0", "worker 1"};

double Now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

// The port that a process says its HTTP is at; 0 if it has not said so yet.
int HttpPortIn(const std::string& output, const std::string& name) {
  for (const absl::string_view line : absl::StrSplit(output, '\n')) {
    if (!absl::StartsWith(line, name + " | ") || !absl::StrContains(line, "answers HTTP on=")) continue;
    for (const absl::string_view word : absl::StrSplit(line, ' ')) {
      int port = 0;
      if (absl::StartsWith(word, "port=") && absl::SimpleAtoi(word.substr(5), &port)) return port;
    }
  }
  return 0;
}

// Two ps that follow each other and keep a log, and two workers that train for days. All have HTTP ports.
class MonitoredCluster {
 public:
  MonitoredCluster()
      : run_({"local", ProjectFile("configs/local.yaml"), "--verbose", "--set", "train.epochs=1000000", "--set",
              "data.generated.train_samples=4000", "--set", "data.generated.test_samples=1000", "--set",
              "server.http_listen=127.0.0.1:0", "--set", "worker.http_listen=127.0.0.1:0", "--set",
              absl::StrCat("server.data_dir=", TestFile(testing::UnitTest::GetInstance()->current_test_info()->name())),
              "--set", "cluster.replicas=2", "--set", "checkpoint.every_ms=500"}) {
    const auto all_there = [this](const std::string& output) {
      for (const char* name : kNames) {
        if ((ports_[name] = HttpPortIn(output, name)) == 0) return false;
      }
      return absl::StrContains(output, "psctl: training");
    };
    EXPECT_TRUE(run_.WaitForOutput(all_there)) << run_.output();
    const std::string said = "psctl status --address ";
    const size_t at = run_.output().find(said) + said.size();
    const auto found = psctl::FindServers(run_.output().substr(at, run_.output().find(')', at) - at), kScrapesStatusMs);
    EXPECT_TRUE(found.ok()) << found.status();
    if (found.ok()) servers_ = *found;
  }
  ~MonitoredCluster() {
    run_.Signal(SIGKILL);  // Without an evaluation, which no test here looks at.
    run_.WaitForEnd();
  }

  // Between two questions: there are only two cores for everybody, or fewer. What is said meanwhile is read, so that
  // psctl does not block on a full pipe.
  void Pause() { run_.Read(20); }

  std::string HttpOf(const std::string& name) const { return absl::StrCat("127.0.0.1:", ports_.at(name)); }
  MetricText MetricsOf(const std::string& name) const { return MetricText(TextOf(name)); }
  std::string TextOf(const std::string& name) const {
    const std::string answer = Get(static_cast<uint16_t>(ports_.at(name)), "/metrics");
    EXPECT_EQ(CodeOf(answer), 200) << name;
    return BodyOf(answer);
  }
  std::string ReadinessOf(const std::string& name) const {
    return BodyOf(Get(static_cast<uint16_t>(ports_.at(name)), "/readyz"));
  }
  void Signal(const std::string& program, int signal) const {
    for (const pid_t pid : run_.Processes(program)) kill(pid, signal);
  }
  // Pushes applied by all ps.
  double Pushes() const {
    double pushes = 0;
    for (const psctl::ServerAddress& server : servers_) {
      const auto status = psctl::FetchStatus(server.address, kScrapesStatusMs);
      EXPECT_TRUE(status.ok()) << status.status();
      if (status.ok()) pushes += static_cast<double>(status->server().pushes());
    }
    return pushes;
  }

 private:
  PsctlRun run_;
  std::map<std::string, int> ports_;
  std::vector<psctl::ServerAddress> servers_;
};

// Prometheus, with the project's configuration but for where the processes are and how often they are asked.
class Prometheus {
 public:
  // `cluster` must outlive this.
  explicit Prometheus(MonitoredCluster* cluster) : cluster_(cluster), client_(port_.address()) {
    YAML::Node config = LoadDocuments("configs/monitoring/prometheus.yml").at(0);
    config["global"]["scrape_interval"] = "500ms";
    config["global"]["evaluation_interval"] = "500ms";
    config["rule_files"][0] = ProjectFile("configs/monitoring/alerts.yml");
    for (YAML::Node job : config["scrape_configs"]) {
      const std::string program = absl::EndsWith(job["job_name"].as<std::string>(), "worker") ? "worker " : "ps ";
      YAML::Node targets(YAML::NodeType::Sequence);
      for (const char* index : {"0", "1"}) targets.push_back(cluster->HttpOf(program + index));
      job["static_configs"][0]["targets"] = targets;
    }
    const std::string file = TestFile("prometheus.yml");
    std::ofstream(file) << config;
    auto child = psctl::Child::Start(
        "prometheus", {kPrometheus, "--config.file=" + file, "--log.level=error",
                       "--storage.tsdb.path=" + TestFile("tsdb"), "--web.listen-address=" + port_.address()});
    EXPECT_TRUE(child.ok()) << child.status();
    if (child.ok()) child_ = *std::move(child);
  }

  // The answer of its HTTP API; waits until it answers. Null if it has ended.
  json Ask(const std::string& path) {
    while (!child_->Reap([this](absl::string_view line) { absl::StrAppend(&said_, line, "\n"); })) {
      const httplib::Result answer = client_.Get(path.c_str());
      if (answer && answer->status == 200) return json::parse(answer->body).at("data");
      EXPECT_TRUE(!answer || answer->status == 503) << path << ": " << answer->body;  // It starts.
      cluster_->Pause();
    }
    ADD_FAILURE() << child_->Outcome() << "\n" << said_;
    return json();
  }
  // The value of an expression that has one at most; nullopt if it has none.
  std::optional<double> Query(const std::string& expression) {
    const json data = Ask("/api/v1/query?query=" + httplib::detail::encode_query_param(expression));
    if (data.is_null() || data.at("result").empty()) return std::nullopt;
    EXPECT_THAT(data.at("result"), SizeIs(1)) << expression;
    double value = 0;
    EXPECT_TRUE(absl::SimpleAtod(data.at("result")[0].at("value")[1].get<std::string>(), &value));
    return value;
  }
  // Waits until an expression has this value.
  void Await(const std::string& expression, double value) {
    while (Query(expression) != value && !testing::Test::HasFailure()) cluster_->Pause();
  }
  // Waits until both ps have been asked since `since`, in seconds since 1970.
  void AwaitScrapeOfPs(double since) {
    Await(absl::StrFormat("count(timestamp(lodestone_ps_pushes_total) > %.3f)", since), 2);
  }

 private:
  MonitoredCluster* const cluster_;
  const ReservedPort port_;
  httplib::Client client_;
  std::unique_ptr<psctl::Child> child_;
  std::string said_;
};

TEST(Prometheus, SeesAWholeClusterAndCountsAsItDoes) {
  if (access(kPrometheus, X_OK) != 0) {
    GTEST_SKIP() << "there is no " << kPrometheus
                 << ", of Debian's package prometheus; tools/install --check installs it";
  }
  MonitoredCluster cluster;
  Prometheus prometheus(&cluster);
  ASSERT_FALSE(HasFailure());
  prometheus.Await("count(up == 1)", 4);
  prometheus.Await("count(up{job=\"lodestone-worker\"} == 1)", 2);

  const double before = cluster.Pushes();
  prometheus.AwaitScrapeOfPs(Now());
  const double first = prometheus.Query("sum(lodestone_ps_pushes_total)").value_or(-1);
  EXPECT_GE(first, before);
  EXPECT_LE(first, cluster.Pushes());
  while (prometheus.Query("sum(lodestone_ps_pushes_total)").value_or(-1) <= first && !HasFailure()) {
    cluster.Pause();
  }

  // Nobody pushes or pulls any more, once what is under way is done.
  cluster.Signal("worker", SIGSTOP);
  double told = -1;
  for (double last = -2, pushes = -1; (pushes != told || told != last) && !HasFailure();) {
    last = told;
    pushes = cluster.Pushes();
    prometheus.AwaitScrapeOfPs(Now());
    told = prometheus.Query("sum(lodestone_ps_pushes_total)").value_or(-1);
  }
  EXPECT_EQ(
      prometheus.Query("sum(lodestone_ps_push_duration_seconds_count) - sum(lodestone_ps_pushes_duplicate_total)"),
      told);
  for (const char* stage : {"queue", "apply", "commit"}) {
    EXPECT_EQ(prometheus.Query(absl::StrCat("sum(lodestone_ps_push_duration_seconds_count) - "
                                            "sum(lodestone_ps_push_stage_duration_seconds_count{stage=\"",
                                            stage, "\"})")),
              0)
        << stage;
  }
  EXPECT_EQ(prometheus.Query("sum(lodestone_ps_pull_duration_seconds_count) - sum(lodestone_ps_pulls_total)"), 0);
  EXPECT_EQ(prometheus.Query("sum(lodestone_ps_push_duration_seconds_bucket{le=\"+Inf\"}) - "
                             "sum(lodestone_ps_push_duration_seconds_count)"),
            0);
  const std::optional<double> p99 =
      prometheus.Query("histogram_quantile(0.99, sum by (le) (lodestone_ps_push_duration_seconds_bucket))");
  EXPECT_GT(p99.value_or(0), 0);

  // The alerts are evaluated without errors.
  size_t rules = 0;
  for (bool evaluated = false; !evaluated && !HasFailure(); cluster.Pause()) {
    evaluated = true;
    rules = 0;
    const json answer = prometheus.Ask("/api/v1/rules");
    for (const json& group : answer.at("groups")) {
      for (const json& rule : group.at("rules")) {
        ++rules;
        EXPECT_NE(rule.at("health"), "err") << rule;
        evaluated &= rule.at("health") == "ok";
      }
    }
  }
  EXPECT_EQ(rules, AlertExpressions().size());
}

TEST(Metrics, EverythingThatAlertsAndDashboardAskForIsThere) {
  MonitoredCluster cluster;
  ASSERT_FALSE(HasFailure());
  // After the first checkpoint, which is written while they train.
  while (!cluster.MetricsOf("ps 0").Has("lodestone_ps_checkpoint_timestamp_seconds")) cluster.Pause();
  std::set<std::string> there;
  for (const char* name : kNames) {
    while (cluster.ReadinessOf(name) != "ready\n") cluster.Pause();  // Once each shard has its two copies.
    const std::set<std::string> names = cluster.MetricsOf(name).Names();
    there.insert(names.begin(), names.end());
  }
  std::set<std::string> asked;
  for (const auto& expressions : {AlertExpressions(), DashboardExpressions()}) {
    for (const auto& [where, expression] : expressions) {
      for (const std::string& metric : MetricsIn(expression)) {
        EXPECT_THAT(there, Contains(metric)) << where;
        asked.insert(metric);
      }
    }
  }
  EXPECT_GT(asked.size(), 50u);
}

TEST(Metrics, PromtoolTakesThoseOfALiveCluster) {
  if (!HasProgram("promtool")) GTEST_SKIP() << "promtool is not here; Debian has it in the package prometheus";
  MonitoredCluster cluster;
  ASSERT_FALSE(HasFailure());
  for (const char* name : kNames) {
    const std::string file = TestFile("metrics.txt");
    std::ofstream(file) << cluster.TextOf(name);
    int exit_code = 0;
    EXPECT_EQ(RunShell("promtool check metrics < " + file, &exit_code), "") << name;
    EXPECT_EQ(exit_code, 0) << name;
  }
}

}  // namespace
}  // namespace lodestone
