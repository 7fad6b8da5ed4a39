// Suggestions for misspelt names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lodestone {

// The least number of insertions, deletions, replacements and swaps of neighbours that turn `a` into `b` (optimal
// string alignment). Case counts.
int EditDistance(std::string_view a, std::string_view b);

// The first of the names of `valid` that is nearest to `name`, compared without regard to case and to "-" for "_";
// empty if none is near enough to be a likely slip.
std::string Nearest(std::string_view name, const std::vector<std::string>& valid);

// The field's name for what other programs call `name`, "learning_rate" for "lr"; `name` itself if it is no such word.
std::string WithoutSynonym(const std::string& name);

}  // namespace lodestone
