#include "kernels/blas_core.h"

#include <cblas.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <iterator>
#include <string>

namespace lodestone::kernels::cpu {
namespace {

constexpr char kVariable[] = "OPENBLAS_CORETYPE";

// Those without AVX, which OpenBLAS takes where it does not know the processor.
constexpr std::string_view kOldCores[] = {"Prescott", "Core2",  "Penryn",       "Dunnington", "Nehalem",
                                          "Atom",     "Athlon", "Opteron_SSE3", "Opteron",    "Barcelona"};

bool HasAvx2AndFma() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

bool HasAvx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
#else
  return false;
#endif
}

}  // namespace

std::string_view BetterCoreType(std::string_view taken, bool avx2_and_fma, bool avx512) {
  if (!avx2_and_fma || std::find(std::begin(kOldCores), std::end(kOldCores), taken) == std::end(kOldCores)) return {};
  return avx512 ? "SkylakeX" : "Haswell";
}

void RestartOnBetterCoreType(char** argv) {
  if (getenv(kVariable) != nullptr || getauxval(AT_BASE) == 0) return;  // 0: the loader was started, with us.
  const std::string_view better = BetterCoreType(openblas_get_corename(), HasAvx2AndFma(), HasAvx512());
  if (better.empty()) return;
  // By its own path, so that the process keeps its name.
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
  if (length <= 0 || setenv(kVariable, std::string(better).c_str(), 1) != 0) return;
  path[length] = '\0';
  execv(path, argv);
  unsetenv(kVariable);
}

}  // namespace lodestone::kernels::cpu
