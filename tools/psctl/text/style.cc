#include "tools/psctl/text/style.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/base/utf8.h"

namespace lodestone::psctl {
namespace {

constexpr absl::string_view kPlain = "\x1b[0";  // Ends with m.
constexpr absl::string_view kPlainAgain = "\x1b[0m";

ColorMode mode = ColorMode::kAuto;

// Its escape code; null for none.
const char* CodeOf(Style style) {
  switch (style) {
    case Style::kPlain:
      return nullptr;
    case Style::kHeading:
      return "1";
    case Style::kGood:
      return "32";
    case Style::kWarning:
      return "33";
    case Style::kBad:
      return "31";
    case Style::kFaint:
      return "2";
  }
  return nullptr;
}

}  // namespace

void SetColorMode(ColorMode wanted) { mode = wanted; }

bool ForbidsColor() {
  if (mode != ColorMode::kAuto) return mode == ColorMode::kNever;
  const char* const no_color = getenv("NO_COLOR");
  return no_color != nullptr && *no_color != '\0';
}

bool WantsColor(int fd) { return mode == ColorMode::kAlways || (!ForbidsColor() && IsTerminal(fd)); }

bool IsTerminal(int fd) {
  const char* const term = getenv("TERM");
  return isatty(fd) && term != nullptr && absl::string_view(term) != "dumb";
}

std::string Painter::operator()(Style style, absl::string_view text) const {
  const char* const code = CodeOf(style);
  if (!color_ || code == nullptr || text.empty()) return std::string(text);
  return absl::StrCat("\x1b[", code, "m", text, kPlainAgain);
}

std::string Printable(absl::string_view text) {
  const std::string_view given(text.data(), text.size());
  std::string printable;
  for (size_t i = 0; i < given.size();) {
    const size_t length = Utf8Length(given, i);
    const auto first = static_cast<unsigned char>(given[i]);
    const bool is_control = first < 0x20 || first == 0x7f ||
                            (length == 2 && first == 0xc2 && static_cast<unsigned char>(given[i + 1]) < 0xa0);
    if (first == '\n' || first == '\t') {
      printable += ' ';
    } else if (length == 0 || is_control) {
      printable += '?';
    } else {
      printable += given.substr(i, length);
    }
    i += std::max<size_t>(1, length);
  }
  return printable;
}

size_t ColumnsOf(absl::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

std::string CutToColumns(absl::string_view text, size_t columns) {
  bool painted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b') {
      const size_t end = std::min(text.find('m', i), text.size() - 1);
      painted = text.substr(i, end - i) != kPlain;
      i = end;
    } else if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80 && columns-- == 0) {
      return absl::StrCat(text.substr(0, i), painted ? kPlainAgain : "");
    }
  }
  return std::string(text);
}

}  // namespace lodestone::psctl
