#include "tests/chaos/report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace lodestone::chaos {
namespace {

// REQUIRES: not empty.
double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double Max(const std::vector<double>& values) { return *std::max_element(values.begin(), values.end()); }

std::string FaultLine(const std::string& name, const std::vector<double>& recoveries_ms, uint64_t impossible) {
  std::string line = absl::StrFormat("%-20s %9d", name, recoveries_ms.size());
  if (!recoveries_ms.empty()) {
    absl::StrAppendFormat(&line, " %14.3f %10.3f", Median(recoveries_ms) / 1000, Max(recoveries_ms) / 1000);
  }
  if (impossible > 0) absl::StrAppendFormat(&line, "   and %d that were not possible", impossible);
  return line + "\n";
}

std::string OutageLines(const Report& report) {
  std::string text;
  for (const auto& [kind, outages_ms] : report.outages_ms) {
    const auto beyond =
        std::count_if(outages_ms.begin(), outages_ms.end(), [&](double ms) { return ms > report.outage_ms_bound(); });
    absl::StrAppendFormat(&text, "failover, %-10s %d: median %.3f s, longest %.3f s; bound %.3f s, beyond it %d\n",
                          InfoOf(kind).name, outages_ms.size(), Median(outages_ms) / 1000, Max(outages_ms) / 1000,
                          report.outage_ms_bound() / 1000, beyond);
  }
  absl::StrAppendFormat(&text, "replicas             %d compared with their owners' shards, %d differed",
                        report.replicas_same + report.replicas_differ, report.replicas_differ);
  if (report.kept_disks > 0) absl::StrAppendFormat(&text, "; %d ps kept their disks", report.kept_disks);
  return text + "\n";
}

// "median (min-max)" of one field. REQUIRES: not empty.
std::string Spread(const std::vector<GoodputShares>& shares, double GoodputShares::*field) {
  std::vector<double> values;
  for (const GoodputShares& each : shares) values.push_back(each.*field);
  return absl::StrFormat("%.3f (%.3f-%.3f)", Median(values), *std::min_element(values.begin(), values.end()),
                         Max(values));
}

std::string GoodputLine(const Report& report) {
  return absl::StrFormat(
      "goodput              %s of the rate without faults, %d faults at %g s; recovery took %s, work after it %s\n",
      Spread(report.goodput, &GoodputShares::goodput), report.goodput.size(), report.goodput_every_seconds,
      Spread(report.goodput, &GoodputShares::lost_in_recovery), Spread(report.goodput, &GoodputShares::lost_after));
}

nlohmann::ordered_json GoodputJson(const Report& report) {
  nlohmann::ordered_json json = {{"every_seconds", report.goodput_every_seconds}};
  std::vector<double> shares;
  for (const GoodputShares& each : report.goodput) {
    json["faults"].push_back(
        {{"share", each.goodput}, {"lost_in_recovery", each.lost_in_recovery}, {"lost_after", each.lost_after}});
    shares.push_back(each.goodput);
  }
  json["share_median"] = Median(shares);
  return json;
}

std::string TurnoverLine(const TurnoverReport& turnover) {
  return absl::StrFormat(
      "trained              %d epochs in %d runs, each sample once in each; %d workers joined, %d left, %d were "
      "killed, %d ranges were given again; the order of steps changed %d times, %d operators were killed and %d "
      "stopped in the middle\n",
      turnover.runs * WorkerTurnover::kEpochs, turnover.runs, turnover.joined, turnover.left, turnover.killed,
      turnover.again, turnover.orders, turnover.operators_killed, turnover.operators_stopped);
}

double GoodputShare(const Report& report) {
  return report.calm_pushes_per_second > 0 ? report.stormy_pushes_per_second / report.calm_pushes_per_second : 0;
}

}  // namespace

uint64_t Report::faults() const {
  uint64_t count = 0;
  for (const auto& [kind, recoveries] : recoveries_ms) count += recoveries.size();
  return count;
}

std::string ToTable(const Report& report) {
  std::string text = absl::StrFormat("%-20s %9s %14s %10s\n", "fault", "injected", "recovery s", "longest s");
  std::vector<double> all;
  uint64_t impossible = 0;
  for (const FaultInfo& info : FaultInfos()) {
    const auto found = report.recoveries_ms.find(info.kind);
    const auto missed = report.impossible.find(info.kind);
    const std::vector<double> recoveries = found == report.recoveries_ms.end() ? std::vector<double>() : found->second;
    const uint64_t not_possible = missed == report.impossible.end() ? 0 : missed->second;
    if (recoveries.empty() && not_possible == 0) continue;
    text.append(FaultLine(info.name, recoveries, not_possible));
    all.insert(all.end(), recoveries.begin(), recoveries.end());
    impossible += not_possible;
  }
  text.append(FaultLine("all", all, impossible));
  const Verdict& verdict = report.verdict;
  absl::StrAppendFormat(&text, "\nseed %d, %.0f s\n", report.seed, report.seconds);
  absl::StrAppendFormat(&text, "pushes acknowledged  %d; %.0f per second without faults, %.0f with them (%.0f %%)\n",
                        report.acknowledged, report.calm_pushes_per_second, report.stormy_pushes_per_second,
                        100 * GoodputShare(report));
  if (!report.goodput.empty()) text.append(GoodputLine(report));
  absl::StrAppendFormat(&text, "sent again           %d that a ps had applied already, and recognised\n",
                        report.duplicates);
  absl::StrAppendFormat(&text, "longest pause        %.3f s between two acknowledgements\n", report.pause_seconds_max);
  if (report.replicas) text.append(OutageLines(report));
  absl::StrAppendFormat(&text, "unacknowledged       %d on a shard, of which %d were applied there\n",
                        verdict.undecided, verdict.applied);
  absl::StrAppendFormat(&text, "judged one by one    %d acknowledged pushes, each by its own digit\n", verdict.judged);
  absl::StrAppendFormat(&text, "lost                 %d\ndoubled              %d\nwrong                %d",
                        verdict.lost, verdict.doubled, verdict.wrong);
  absl::StrAppendFormat(&text, "   of %d numbers compared in %d audits\n", verdict.compared, report.audits);
  for (const std::string& finding : verdict.findings) absl::StrAppend(&text, "  ", finding, "\n");
  if (report.turnover.joined > 0) text.append(TurnoverLine(report.turnover));
  if (report.judgement.histories > 0) text.append(ToText(report.judgement));
  if (!report.failure.empty()) absl::StrAppend(&text, "failed: ", report.failure, "\n");
  if (report.audits == 0) text.append("failed: nothing was compared\n");
  return text;
}

std::string ToJson(const Report& report) {
  nlohmann::ordered_json json;
  json["ok"] = report.ok();
  json["seed"] = report.seed;
  json["seconds"] = report.seconds;
  json["stopped"] = report.stopped;
  json["failure"] = report.failure;
  for (const FaultInfo& info : FaultInfos()) {
    const auto found = report.recoveries_ms.find(info.kind);
    if (found == report.recoveries_ms.end() || found->second.empty()) continue;
    json["faults"][info.name] = {{"injected", found->second.size()},
                                 {"recovery_ms_median", Median(found->second)},
                                 {"recovery_ms_max", Max(found->second)}};
  }
  if (report.replicas) {
    for (const auto& [kind, outages_ms] : report.outages_ms) {
      json["failovers"][InfoOf(kind).name] = {
          {"count", outages_ms.size()}, {"outage_ms_median", Median(outages_ms)}, {"outage_ms_max", Max(outages_ms)}};
    }
    json["outage_ms_bound"] = report.outage_ms_bound();
    json["disks_kept"] = report.kept_disks;
    json["replicas_same"] = report.replicas_same;
    json["replicas_differ"] = report.replicas_differ;
  }
  json["pushes_acknowledged"] = report.acknowledged;
  json["duplicates"] = report.duplicates;
  json["pushes_per_second_calm"] = report.calm_pushes_per_second;
  json["pushes_per_second_stormy"] = report.stormy_pushes_per_second;
  json["goodput_share"] = GoodputShare(report);
  if (!report.goodput.empty()) json["goodput"] = GoodputJson(report);
  json["pause_seconds_max"] = report.pause_seconds_max;
  json["audits"] = report.audits;
  json["compared"] = report.verdict.compared;
  json["judged"] = report.verdict.judged;
  json["unacknowledged"] = report.verdict.undecided;
  json["unacknowledged_applied"] = report.verdict.applied;
  json["lost"] = report.verdict.lost;
  json["doubled"] = report.verdict.doubled;
  json["wrong"] = report.verdict.wrong;
  json["findings"] = report.verdict.findings;
  if (report.turnover.joined > 0) {
    json["workers"] = {{"runs", report.turnover.runs},
                       {"epochs", report.turnover.runs * WorkerTurnover::kEpochs},
                       {"joined", report.turnover.joined},
                       {"left", report.turnover.left},
                       {"killed", report.turnover.killed},
                       {"ranges_again", report.turnover.again},
                       {"orders", report.turnover.orders},
                       {"operators_killed", report.turnover.operators_killed},
                       {"operators_stopped", report.turnover.operators_stopped}};
  }
  if (const Judgement& judgement = report.judgement; judgement.histories > 0) {
    json["histories"] = {{"count", judgement.histories},
                         {"operations", judgement.operations},
                         {"unanswered", judgement.unanswered},
                         {"rows", judgement.rows},
                         {"rows_linearizable", judgement.rows_linearizable},
                         {"rows_taken_back", judgement.rows_taken_back},
                         {"rows_illegal", judgement.rows_illegal},
                         {"rows_undecided", judgement.rows_undecided},
                         {"twins_apart", judgement.twins_apart},
                         {"own_adds_missing", judgement.own_adds_missing},
                         {"versions_fallen", judgement.versions_fallen},
                         {"versions_taken_back", judgement.versions_taken_back},
                         {"open_max", judgement.open_max},
                         {"check_seconds_max", judgement.seconds_max},
                         {"findings", judgement.findings}};
  }
  json["schedule"] = report.schedule;
  return json.dump();
}

}  // namespace lodestone::chaos
