// Completion scripts for bash, zsh and fish.
//
// Thread safety: pure.
#pragma once

#include <string>
#include <vector>

#include "tools/psctl/completion.h"

namespace lodestone::psctl {

// Scripts for `psctl`, from what stands before the verb and each verb (CompletedVerbsOf).
std::string BashCompletion(const std::vector<CompletedVerb>& verbs);
std::string ZshCompletion(const std::vector<CompletedVerb>& verbs);
std::string FishCompletion(const std::vector<CompletedVerb>& verbs);

}  // namespace lodestone::psctl
