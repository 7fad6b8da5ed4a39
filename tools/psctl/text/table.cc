#include "tools/psctl/text/table.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lodestone::psctl {
namespace {

bool IsNumber(const std::string& text) { return !text.empty() && (absl::ascii_isdigit(text[0]) || text == "-"); }

}  // namespace

std::vector<std::string> AlignedLines(const Rows& rows, const Painter& paint) {
  std::vector<size_t> widths;
  std::vector<bool> numeric;
  for (size_t r = 0; r < rows.size(); ++r) {
    widths.resize(std::max(widths.size(), rows[r].size()), 0);
    numeric.resize(widths.size(), true);
    for (size_t c = 0; c < rows[r].size(); ++c) {
      widths[c] = std::max(widths[c], ColumnsOf(Printable(rows[r][c].text)));
      if (r > 0 && !IsNumber(rows[r][c].text)) numeric[c] = false;
    }
  }
  std::vector<std::string> lines;
  for (size_t r = 0; r < rows.size(); ++r) {
    const std::vector<Cell>& row = rows[r];
    size_t last = row.size();  // What follows the last cell with a text is left out.
    while (last > 0 && row[last - 1].text.empty()) --last;
    std::string line;
    for (size_t c = 0; c < last; ++c) {
      const std::string text = Printable(row[c].text);
      const std::string padding(widths[c] - ColumnsOf(text), ' ');
      const std::string painted = paint(r == 0 ? Style::kFaint : row[c].style, text);
      const bool padded_after = !numeric[c] && c + 1 < last;
      absl::StrAppend(&line, "  ", numeric[c] ? padding : "", painted, padded_after ? padding : "");
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

std::string AlignedTable(const Rows& rows, const Painter& paint) {
  std::string text;
  for (const std::string& line : AlignedLines(rows, paint)) absl::StrAppend(&text, line, "\n");
  return text;
}

void AppendSection(std::string* text, absl::string_view title, const Rows& rows, const Painter& paint) {
  if (rows.size() > 1) absl::StrAppend(text, "\n", paint(Style::kHeading, title), "\n", AlignedTable(rows, paint));
}

std::string WithThousands(uint64_t number) {
  std::string text = absl::StrCat(number);
  for (int at = static_cast<int>(text.size()) - 3; at > 0; at -= 3) text.insert(at, 1, ',');
  return text;
}

std::string WithUnit(uint64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes);
  const char* unit = "";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB", "PiB"}) {
    if (value < 1024) break;
    value /= 1024;
    unit = next;
  }
  return absl::StrFormat("%.1f %s", value, unit);
}

std::string SecondsText(double seconds) { return absl::StrFormat("%.1f s", seconds); }

std::string RateText(double per_second) {
  return WithThousands(static_cast<uint64_t>(std::llround(std::max(0.0, per_second))));
}

}  // namespace lodestone::psctl
