// The version of everything in this tree, and the commit that it was built from.
#pragma once

#include <string>

namespace lodestone {

inline constexpr char kVersion[] = "0.1.0";

// The commit's first twelve digits, and whether the sources were as committed: "b56af68c172c, clean" or "…, modified".
// Empty if the build does not know: only release builds are told (`bazel build --config=release`), so that no other
// build changes with each commit.
extern const char kCommit[];

// "0.1.0 (b56af68c172c, clean)", or "0.1.0 (commit unknown)".
std::string VersionText();

}  // namespace lodestone
