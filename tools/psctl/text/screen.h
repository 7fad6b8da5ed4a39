// A terminal that is taken over to be redrawn in place: the alternate screen, without a cursor and without echo.
//
// Not thread-safe. The terminal is as it was once this is gone, or while it is left.
#pragma once

#include <termios.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lodestone::psctl {

// The size of a frame, in character cells.
struct FrameSize {
  size_t columns = SIZE_MAX;
  size_t lines = SIZE_MAX;
};

class Screen {
 public:
  // Keys come from `in` (a terminal, or none: -1), pictures go to `out`. Takes it over.
  Screen(int in, int out);
  ~Screen() { Leave(); }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  // Gives the terminal back for a while, and takes it again.
  void Leave();
  void Enter();

  // As it is now.
  FrameSize size() const;
  // Replaces the picture.
  void Draw(const std::vector<std::string>& lines);

 private:
  void Write(const std::string& text);

  const int in_;
  const int out_;
  bool entered_ = false;
  bool has_settings_ = false;
  termios settings_{};  // Of `in_`, before.
};

}  // namespace lodestone::psctl
