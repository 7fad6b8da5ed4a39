// The name of a ps in a stream's metadata. A client says with each stream Exchange which ps it means: one that ends up
// at another, because an address has changed hands, is turned away there.
//
// Thread safety: pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace lodestone {

// The metadata that names the ps that is meant, which may be absent. "-bin": any bytes.
inline constexpr char kMeantPsKey[] = "lodestone-ps-bin";

// "ps 1 of cluster `lodestone`".
inline std::string PsName(uint32_t index, absl::string_view cluster) {
  return absl::StrCat("ps ", index, " of cluster `", cluster, "`");
}

}  // namespace lodestone
