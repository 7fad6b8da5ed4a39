#include "common/io/boot_id.h"

#include <fcntl.h>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"
#include "common/base/simulation.h"
#include "common/io/file.h"

namespace lodestone {

std::string BootId() {
  if (const Simulation* const simulation = Simulation::Current(); simulation != nullptr) return simulation->BootId();
  const auto file = File::Open("/proc/sys/kernel/random/boot_id", O_RDONLY);
  if (!file.ok()) return "";
  char text[64];
  const auto read = file->ReadAt(0, text, sizeof(text));
  return read.ok() ? std::string(absl::StripAsciiWhitespace(absl::string_view(text, *read))) : "";
}

}  // namespace lodestone
