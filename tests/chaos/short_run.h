// Short chaos runs in tests.
#pragma once

#include <string>

#include "tests/chaos/report.h"
#include "tests/chaos/run.h"

namespace lodestone::chaos {

// What a run of the ps as built gives, with all that it writes in a folder of the test's own, `name`. Few calm pushes
// and short gaps unless `options` say otherwise; says what happened if something was lost.
Report RunShortly(const std::string& name, RunOptions options);

// Few faults, close together.
RunOptions ShortOptions(uint64_t seed, std::vector<FaultKind> kinds, uint64_t faults);

}  // namespace lodestone::chaos
