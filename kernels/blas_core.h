// The kernels that OpenBLAS takes for this machine's processor: by its model, and very old ones for a model that it
// does not know. Debian 12's 0.3.21 takes those of Prescott (2004) for a Xeon of 2023.
#pragma once

#include <string_view>

namespace lodestone::kernels::cpu {

// The core type (OPENBLAS_CORETYPE) that suits a processor with these instructions better than `taken`, which OpenBLAS
// has chosen; empty: none does.
std::string_view BetterCoreType(std::string_view taken, bool avx2_and_fma, bool avx512);

// Starts this program again, as the same process and with the same arguments, if another core type is better: OpenBLAS
// chooses when it is loaded. Not if OPENBLAS_CORETYPE is set. To be called first in main, before there is anything to
// lose. It returns if nothing is to be done or that fails; `argv` ends with a null.
void RestartOnBetterCoreType(char** argv);

}  // namespace lodestone::kernels::cpu
