#include "tools/psctl/text/screen.h"

#include <errno.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lodestone::psctl {
namespace {

constexpr char kEnter[] = "\x1b[?1049h\x1b[?25l";  // The alternate screen; no cursor.
constexpr char kLeave[] = "\x1b[?25h\x1b[?1049l";
constexpr char kHome[] = "\x1b[H";
constexpr char kNextLine[] = "\x1b[K\r\n";  // After erasing what is left of this one.
constexpr char kEraseBelow[] = "\x1b[K\x1b[J";

}  // namespace

Screen::Screen(int in, int out) : in_(in), out_(out) { Enter(); }

void Screen::Enter() {
  if (entered_) return;
  entered_ = true;
  has_settings_ = in_ >= 0 && tcgetattr(in_, &settings_) == 0;
  if (has_settings_) {
    termios settings = settings_;
    settings.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);  // Keys at once, and unseen. Ctrl-C stays a signal.
    tcsetattr(in_, TCSANOW, &settings);
  }
  Write(kEnter);
}

void Screen::Leave() {
  if (!entered_) return;
  entered_ = false;
  Write(kLeave);
  if (has_settings_) tcsetattr(in_, TCSAFLUSH, &settings_);
}

FrameSize Screen::size() const {
  winsize size{};
  if (ioctl(out_, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {80, 24};
  return {size.ws_col, size.ws_row};
}

void Screen::Draw(const std::vector<std::string>& lines) {
  Write(absl::StrCat(kHome, absl::StrJoin(lines, kNextLine), kEraseBelow));
}

void Screen::Write(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const ssize_t written = write(out_, text.data() + at, text.size() - at);
    if (written < 0 && errno != EINTR) return;  // The terminal is gone.
    if (written > 0) at += static_cast<size_t>(written);
  }
}

}  // namespace lodestone::psctl
