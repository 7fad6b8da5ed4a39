#include "tools/bench/harness/cost_model.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"

namespace lodestone::bench {
namespace {

constexpr double kMessageBytes = 2 << 20;  // worker/client/request_router.h: MessageLimits::bytes_target.
constexpr double kPushesInFlight = 4;      // worker.pushes_in_flight_max's default.
constexpr double kKeyBytes = 8;
constexpr double kFloatBytes = 4;
constexpr double kBatchKeys = 4096;  // Of the embedding rows.

struct Size {
  const char* text;
  double bytes;
};
constexpr std::array<Size, 4> kFittedSizes = {{{"4KiB", 4096}, {"64KiB", 65536}, {"1MiB", 1 << 20}, {"4MiB", 4 << 20}}};

const Row* FindRow(const Report& report, const std::string& name) {
  const auto found =
      std::find_if(report.rows.begin(), report.rows.end(), [&](const Row& row) { return row.name == name; });
  return found == report.rows.end() ? nullptr : &*found;
}

// CPU seconds of one operation on one side; nothing if there is no such row or it tells none.
std::optional<double> SecondsOf(const Report& report, const std::string& name, const char* side, double amount) {
  const Row* row = FindRow(report, name);
  const Spread* cpu = row == nullptr ? nullptr : row->Find(side);
  if (cpu == nullptr || cpu->median <= 0) return std::nullopt;
  return cpu->median * amount;
}

absl::StatusOr<Cost> FitDense(const Report& report, const std::string& operation, const char* side) {
  std::vector<CostPoint> points;
  for (const Size& size : kFittedSizes) {
    const std::string name = absl::StrCat("dense/", operation, "/", size.text, "/depth8/clients1");
    if (const auto seconds = SecondsOf(report, name, side, 1e-9 * size.bytes)) {
      points.push_back({MessagesOf(size.bytes), size.bytes, *seconds});
    }
  }
  if (points.size() >= 2) return FitCost(points);
  return absl::FailedPreconditionError(absl::StrCat("the cost model needs at least two of the rows dense/", operation,
                                                    "/{4KiB,64KiB,1MiB,4MiB}/depth8/clients1"));
}

// What a batch of rows costs beyond its messages and bytes, by key; 0 if that was not measured.
void FitKeys(const Report& report, const std::string& operation, const char* side, Cost* cost) {
  const std::string name = absl::StrCat("embedding/", operation, "/1000Krows/dim16/depth4");
  const auto seconds = SecondsOf(report, name, side, 1e-6 * kBatchKeys);
  if (!seconds.has_value()) return;
  const double bytes = kBatchKeys * (kKeyBytes + 16 * kFloatBytes);
  cost->per_key = std::max(0.0, (*seconds - cost->Of(MessagesOf(bytes), bytes, 0)) / kBatchKeys);
}

// A measured point, and what the model says of it: CPU seconds of both sides together.
struct Check {
  std::string name;
  double amount = 0;  // In the row's CPU unit, per operation.
  double predicted = 0;
};

std::vector<Check> ChecksOf(const CostModel& model) {
  const auto push = [&](double bytes, double keys) {
    return model.push_client.Of(MessagesOf(bytes), bytes, keys) + model.push_server.Of(MessagesOf(bytes), bytes, keys);
  };
  const auto pull = [&](double bytes, double keys) {
    return model.pull_client.Of(MessagesOf(bytes), bytes, keys) + model.pull_server.Of(MessagesOf(bytes), bytes, keys);
  };
  const double small = 64 << 10, large = 1 << 20;
  const double row_bytes = kBatchKeys * (kKeyBytes + 64 * kFloatBytes);
  return {{"dense/push-pull/64KiB/depth8/clients1", 2e-9 * small, push(small, 0) + pull(small, 0)},
          {"dense/push/1MiB/depth8/clients4", 1e-9 * large, push(large, 0)},
          {"dense/pull/64KiB/depth8/clients2", 1e-9 * small, pull(small, 0)},
          {"embedding/pull-then-push/1000Krows/dim64/depth4", 1e-6 * kBatchKeys,
           push(row_bytes, kBatchKeys) + pull(row_bytes, kBatchKeys)}};
}

std::string Microseconds(double seconds) { return NumberText(1e6 * seconds); }

std::string CostTable(const CostModel& model) {
  std::string text = "| operation, side | us per message | CPU s per GB | ns per key |\n|---|---:|---:|---:|\n";
  for (const auto& [name, cost] : {std::pair{"push, client", &model.push_client},
                                   {"push, server", &model.push_server},
                                   {"pull, client", &model.pull_client},
                                   {"pull, server", &model.pull_server}}) {
    absl::StrAppend(&text, "| ", name, " | ", Microseconds(cost->per_message), " | ", NumberText(1e9 * cost->per_byte),
                    " | ", NumberText(1e9 * cost->per_key), " |\n");
  }
  return text;
}

std::string CheckTable(const Report& report, const CostModel& model) {
  std::string text =
      "| measured, not fitted | CPU us per operation, measured | predicted | error |\n|---|---:|---:|---:|\n";
  for (const Check& check : ChecksOf(model)) {
    const auto client = SecondsOf(report, check.name, kClientCpu, check.amount);
    const auto server = SecondsOf(report, check.name, kServerCpu, check.amount);
    if (!client.has_value() || !server.has_value()) {
      absl::StrAppend(&text, "| ", check.name, " | not measured | ", Microseconds(check.predicted), " | |\n");
      continue;
    }
    const double measured = *client + *server;
    absl::StrAppend(&text, "| ", check.name, " | ", Microseconds(measured), " | ", Microseconds(check.predicted), " | ",
                    absl::StrFormat("%+.0f %%", 100 * (check.predicted / measured - 1)), " |\n");
  }
  return text;
}

std::string PredictionTable(const CostModel& model) {
  std::vector<Scenario> scenarios(3);
  scenarios[0] = {.name = "dense, 100 MB", .dense_bytes = 100e6};
  scenarios[1] = {.name = "dense, 1 GB", .dense_bytes = 1e9};
  scenarios[2] = {.name = "clicks: 1 MB dense, 26 Ki keys of 16", .dense_bytes = 1e6, .keys = 26 * 1024, .dim = 16};
  std::string text = "| each worker's step | steps/s at most |";
  const size_t columns = Predict(model, scenarios[0]).limits.size();
  for (const auto& limit : Predict(model, scenarios[0]).limits) absl::StrAppend(&text, " by ", limit.first, " |");
  text.append(" messages in a server's memory |\n|---|---:|");
  for (size_t i = 0; i < columns + 1; ++i) text.append("---:|");
  text.append("\n");
  for (const Scenario& scenario : scenarios) {
    const Prediction prediction = Predict(model, scenario);
    const auto least = std::min_element(prediction.limits.begin(), prediction.limits.end(),
                                        [](const auto& a, const auto& b) { return a.second < b.second; });
    absl::StrAppend(&text, "| ", scenario.name, " | **", NumberText(least->second), "**, ", least->first, " |");
    for (const auto& limit : prediction.limits) absl::StrAppend(&text, " ", NumberText(limit.second), " |");
    absl::StrAppend(&text, " ", NumberText(1e-6 * prediction.server_memory_bytes), " MB |\n");
  }
  return text;
}

}  // namespace

double MessagesOf(double bytes) { return std::max(1.0, std::ceil(bytes / kMessageBytes)); }

Cost FitCost(const std::vector<CostPoint>& points) {
  // Least squares of (a * messages + b * bytes) / seconds against 1: the normal equations of two unknowns.
  double mm = 0, mb = 0, bb = 0, m = 0, b = 0;
  for (const CostPoint& point : points) {
    const double x = point.messages / point.seconds, y = point.bytes / point.seconds;
    mm += x * x;
    mb += x * y;
    bb += y * y;
    m += x;
    b += y;
  }
  const double determinant = mm * bb - mb * mb;
  Cost cost{(m * bb - b * mb) / determinant, (b * mm - m * mb) / determinant, 0};
  if (cost.per_message < 0) cost = {0, b / bb, 0};
  if (cost.per_byte < 0) cost = {m / mm, 0, 0};
  return cost;
}

absl::StatusOr<CostModel> FitCostModel(const Report& report) {
  CostModel model;
  LODESTONE_ASSIGN_OR_RETURN(model.push_client, FitDense(report, "push", kClientCpu));
  LODESTONE_ASSIGN_OR_RETURN(model.push_server, FitDense(report, "push", kServerCpu));
  LODESTONE_ASSIGN_OR_RETURN(model.pull_client, FitDense(report, "pull", kClientCpu));
  LODESTONE_ASSIGN_OR_RETURN(model.pull_server, FitDense(report, "pull", kServerCpu));
  FitKeys(report, "push", kClientCpu, &model.push_client);
  FitKeys(report, "push", kServerCpu, &model.push_server);
  FitKeys(report, "pull", kClientCpu, &model.pull_client);
  FitKeys(report, "pull", kServerCpu, &model.pull_server);
  return model;
}

Prediction Predict(const CostModel& model, const Scenario& scenario) {
  // What one worker's step exchanges with one server.
  const double dense = scenario.dense_bytes / scenario.servers;
  const double keys = scenario.keys / scenario.servers;
  const double values = keys * scenario.dim * kFloatBytes;
  const double in = dense + values + 2 * keys * kKeyBytes;  // Keys go with the pull's request and with the push.
  const double out = dense + values;
  const double messages = (dense > 0 ? MessagesOf(dense) : 0) + (keys > 0 ? MessagesOf(values) : 0);
  const double push_bytes = dense + values + keys * kKeyBytes;
  const double pull_bytes = dense + values + keys * kKeyBytes;
  const double server =
      model.push_server.Of(messages, push_bytes, keys) + model.pull_server.Of(messages, pull_bytes, keys);
  const double client =
      model.push_client.Of(messages, push_bytes, keys) + model.pull_client.Of(messages, pull_bytes, keys);
  Prediction prediction;
  prediction.limits = {
      {"a server's link", scenario.link_bytes_per_second / (scenario.workers * std::max(in, out))},
      {"a server's cores", scenario.cores / (scenario.workers * server)},
      {"a worker's link", scenario.link_bytes_per_second / (scenario.servers * std::max(in, out))},
      {"a worker's cores", scenario.cores / (scenario.servers * client)},
  };
  prediction.server_memory_bytes = scenario.workers * kPushesInFlight * push_bytes;
  return prediction;
}

absl::StatusOr<std::string> ModelMarkdown(const Report& report) {
  LODESTONE_ASSIGN_OR_RETURN(const CostModel model, FitCostModel(report));
  return absl::StrCat(CostTable(model), "\n", CheckTable(report, model), "\n", PredictionTable(model));
}

}  // namespace lodestone::bench
