// Colours of text on a terminal.
//
// Thread safety: a Painter is a plain value; SetColorMode belongs to the start of the program.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace lodestone::psctl {

enum class ColorMode { kAuto, kAlways, kNever };

// What --color says; kAuto unless it is called.
void SetColorMode(ColorMode mode);

// Whether there are to be no colours, even on a terminal: by --color, or else NO_COLOR in the environment
// (no-color.org).
bool ForbidsColor();
// Whether what is written to `fd` is to have colours: on a terminal that may have them, or anywhere with --color
// always.
bool WantsColor(int fd);

// Whether `fd` is a terminal that can redraw a line.
bool IsTerminal(int fd);

// What a word is, for the eye.
enum class Style { kPlain, kHeading, kGood, kWarning, kBad, kFaint };

class Painter {
 public:
  // Without `color` everything stays as it is.
  explicit Painter(bool color = false) : color_(color) {}

  std::string operator()(Style style, absl::string_view text) const;

 private:
  bool color_;
};

// `text` without what would do something to a terminal: one line, of characters that can be seen. Others become ?.
std::string Printable(absl::string_view text);

// Columns that a printable text takes, one for each character.
size_t ColumnsOf(absl::string_view text);
// The start of a text that takes at most so many; it may be painted.
std::string CutToColumns(absl::string_view text, size_t columns);

}  // namespace lodestone::psctl
