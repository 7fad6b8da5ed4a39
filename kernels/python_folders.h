// The folders that a machine's Pythons have their packages in.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace lodestone::kernels {

// The prefixes (P, where packages are in P/lib/python3*/) of each `python3` in the folders of `path`, which is a PATH's
// value, each once. Where it is a link, also those of all that it leads to, in order: a virtual environment's python3
// is itself a link to the system's.
std::vector<std::string> PythonPrefixes(absl::string_view path);

}  // namespace lodestone::kernels
