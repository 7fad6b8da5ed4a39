// The path of a program that `psctl local` starts: installed beside psctl, or built in the same tree.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lodestone::psctl {

// The folder of the running program. UNAVAILABLE if /proc does not say.
absl::StatusOr<std::string> OwnFolder();

// The executable of a `role` ("ps" or "worker") for a psctl in the folder `psctl_folder`: `lodestone-ROLE` in that
// folder, as packages and archives have it, else what Bazel built for `built` ("server/ps"), two folders above. A plain
// `ROLE` beside psctl does not count: in /usr/bin that is the system's ps. NOT_FOUND names both paths and the flag that
// replaces them.
absl::StatusOr<std::string> FindProgram(const std::string& psctl_folder, absl::string_view role,
                                        absl::string_view built);

}  // namespace lodestone::psctl
