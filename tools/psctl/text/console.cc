#include "tools/psctl/text/console.h"

#include <errno.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "tools/psctl/text/style.h"

namespace lodestone::psctl {
namespace {

constexpr absl::string_view kEraseLine = "\r\x1b[K";
constexpr int kColors[] = {36, 32, 33, 35, 34, 31};  // cyan, green, yellow, magenta, blue, red

}  // namespace

bool Console::IsTerminal(int fd) { return psctl::IsTerminal(fd); }

size_t Console::width() const {
  winsize size{};
  return ioctl(fd_, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void Console::Print(absl::string_view line) {
  if (bar_.empty()) return Write(absl::StrCat(line, "\n"));
  Write(absl::StrCat(kEraseLine, line, "\n", bar_));
}

void Console::PrintFrom(absl::string_view source, int color, absl::string_view line) {
  if (!terminal_ || ForbidsColor()) return Print(absl::StrCat(source, " | ", line));
  Print(absl::StrCat("\x1b[", kColors[color % std::size(kColors)], "m", source, " |\x1b[0m ", line));
}

void Console::SetBar(absl::string_view text) {
  if (!terminal_ || (text.empty() && bar_.empty())) return;
  bar_ = std::string(text.substr(0, width() - 1));  // A full line would wrap.
  Write(absl::StrCat(kEraseLine, bar_));
}

void Console::Write(absl::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd_, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(written);
    } else if (errno == EAGAIN) {
      pollfd wait = {fd_, POLLOUT, 0};
      poll(&wait, 1, -1);
    } else if (errno != EINTR) {
      return;  // Nobody reads any more: nothing to tell and nobody to tell it to.
    }
  }
}

}  // namespace lodestone::psctl
