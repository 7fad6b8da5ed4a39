// Tables of text: columns that stand below each other.
//
// Thread safety: pure functions and plain values.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tools/psctl/text/style.h"

namespace lodestone::psctl {

// What stands in a row and column.
struct Cell {
  Cell(std::string text, Style style = Style::kPlain) : text(std::move(text)), style(style) {}  // NOLINT: is a text.
  Cell(const char* text) : text(text) {}                                                        // NOLINT

  std::string text;
  Style style = Style::kPlain;
};

// The first row is the heading.
using Rows = std::vector<std::vector<Cell>>;

// Rows as lines of aligned columns. Cells that are numbers in every row below the heading are aligned right.
std::string AlignedTable(const Rows& rows, const Painter& paint = Painter());
// One line each, without its end.
std::vector<std::string> AlignedLines(const Rows& rows, const Painter& paint = Painter());

// Adds a blank line, `title` and the table; nothing if there are no rows below the heading.
void AppendSection(std::string* text, absl::string_view title, const Rows& rows, const Painter& paint = Painter());

// 1234567 as "1,234,567".
std::string WithThousands(uint64_t number);
// 1536 as "1.5 KiB".
std::string WithUnit(uint64_t bytes);
// "4.2 s".
std::string SecondsText(double seconds);
// Rounded, as "1,234".
std::string RateText(double per_second);

}  // namespace lodestone::psctl
