// The identity of the running system: what was written to a file in an earlier boot, or on another machine, and was not
// synced may be missing from it now.
//
// Thread safety: a pure function.
#pragma once

#include <string>

namespace lodestone {

// Linux's boot id, the same for all processes (also in containers) until the machine starts again; empty where the
// kernel does not give one.
std::string BootId();

}  // namespace lodestone
