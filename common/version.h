// The version of everything in this tree.
#pragma once

namespace lodestone {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace lodestone
