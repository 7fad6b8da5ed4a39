#include "tools/bench/harness/table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lodestone::bench {
namespace {

using Cells = std::vector<std::vector<std::string>>;

bool HasRange(const std::string& metric) { return metric == kRate || metric == kRatio; }

std::string CellOf(const Row& row, const Metric& metric) {
  const Spread* spread = row.Find(metric.key);
  if (spread == nullptr) return "";
  std::string text = NumberText(spread->median);
  if (HasRange(metric.key)) {
    absl::StrAppend(&text, " (", NumberText(spread->min), "-", NumberText(spread->max), ")");
  }
  return text;
}

// The head and a line for each row: name, the filled metrics, units.
Cells CellsOf(const std::vector<Row>& rows) {
  const auto any = [&](const auto& predicate) { return std::any_of(rows.begin(), rows.end(), predicate); };
  const bool cpu = any([](const Row& row) { return !row.cpu_unit.empty(); });
  Cells cells(rows.size() + 1);
  cells[0] = {"", "unit"};
  for (size_t i = 0; i < rows.size(); ++i) cells[i + 1] = {rows[i].name, rows[i].unit};
  for (const Metric& metric : Metrics()) {
    if (!any([&](const Row& row) { return row.Find(metric.key) != nullptr; })) continue;
    cells[0].push_back(metric.title);
    for (size_t i = 0; i < rows.size(); ++i) cells[i + 1].push_back(CellOf(rows[i], metric));
  }
  if (!cpu) return cells;
  cells[0].push_back("CPU unit");
  for (size_t i = 0; i < rows.size(); ++i) cells[i + 1].push_back(rows[i].cpu_unit);
  return cells;
}

// The first column is aligned left, the others right.
std::string Align(const Cells& cells) {
  std::vector<size_t> widths(cells[0].size());
  for (const auto& line : cells) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string text;
  for (const auto& line : cells) {
    for (size_t i = 0; i < line.size(); ++i) {
      const std::string space(widths[i] - line[i].size(), ' ');
      absl::StrAppend(&text, i == 0 ? "" : "  ", i == 0 ? line[i] + space : space + line[i]);
    }
    text.append("\n");
  }
  return text;
}

}  // namespace

std::string ToTable(const std::vector<Row>& rows) { return rows.empty() ? "" : Align(CellsOf(rows)); }

std::string ToMarkdown(const Report& report) {
  std::string text =
      absl::StrCat("Measured on: ", absl::StrJoin(report.machine, "; ", absl::PairFormatter(" ")), ".\n");
  for (size_t begin = 0; begin < report.rows.size();) {
    size_t end = begin;
    while (end < report.rows.size() && report.rows[end].bench == report.rows[begin].bench) ++end;
    Cells cells = CellsOf({report.rows.begin() + begin, report.rows.begin() + end});
    cells[0][0] = report.rows[begin].bench;
    absl::StrAppend(&text, "\n| ", absl::StrJoin(cells[0], " | "), " |\n|---");
    for (size_t i = 1; i < cells[0].size(); ++i) text.append("|---:");
    text.append("|\n");
    for (size_t i = 1; i < cells.size(); ++i) absl::StrAppend(&text, "| ", absl::StrJoin(cells[i], " | "), " |\n");
    begin = end;
  }
  return text;
}

}  // namespace lodestone::bench
