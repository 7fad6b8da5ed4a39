#include "kernels/cublas.h"

#include <dlfcn.h>
#include <glob.h>
#include <sys/stat.h>

#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/python_folders.h"

namespace lodestone::kernels {
namespace {

// Its major version is part of its name, since another one need not have the same functions.
std::string LibraryName() { return absl::StrCat("libcublas.so.", CUBLAS_VER_MAJOR); }

bool IsFolder(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

// Where it may be: the loader's own places, toolkits, the packages of the Pythons on the PATH.
std::vector<std::string> Patterns() {
  const std::string name = LibraryName(), major = absl::StrCat(CUBLAS_VER_MAJOR);
  std::vector<std::string> patterns = {name, absl::StrCat("/usr/local/cuda/lib64/", name),
                                       absl::StrCat("/usr/local/cuda-", major, "*/lib64/", name),
                                       absl::StrCat("/usr/local/cuda*/targets/*-linux/lib/", name)};
  std::vector<std::string> prefixes = {"/usr", "/usr/local"};
  if (const char* const path = std::getenv("PATH")) {
    for (std::string& prefix : PythonPrefixes(path)) prefixes.push_back(std::move(prefix));
  }
  if (const char* const home = std::getenv("HOME")) prefixes.push_back(absl::StrCat(home, "/.local"));
  for (const std::string& prefix : prefixes) {
    patterns.push_back(absl::StrCat(prefix, "/lib/python3*/*-packages/nvidia/cu", major, "/lib/", name));
    patterns.push_back(absl::StrCat(prefix, "/lib/python3*/*-packages/nvidia/cublas/lib/", name));
  }
  return patterns;
}

std::vector<std::string> Matches(const std::string& pattern) {
  if (pattern.find('/') == std::string::npos) return {pattern};
  glob_t found = {};
  std::vector<std::string> paths;
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  return paths;
}

template <typename Function>
void Find(void* library, const char* name, Function* function, std::string* missing) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr) *missing = name;
}

absl::StatusOr<Cublas> FunctionsOf(void* library, const std::string& path) {
  Cublas cublas;
  cublas.path = path;
  std::string missing;
  Find(library, "cublasCreate_v2", &cublas.create, &missing);
  Find(library, "cublasDestroy_v2", &cublas.destroy, &missing);
  Find(library, "cublasSetStream_v2", &cublas.set_stream, &missing);
  Find(library, "cublasGemmEx", &cublas.gemm, &missing);
  Find(library, "cublasGetStatusString", &cublas.status_string, &missing);
  if (!missing.empty()) return absl::FailedPreconditionError(absl::StrCat(path, " has no function ", missing));
  return cublas;
}

}  // namespace

absl::StatusOr<Cublas> LoadCublas(const std::string& where) {
  std::vector<std::string> patterns;
  if (where.empty()) {
    patterns = Patterns();
  } else {
    patterns = {IsFolder(where) ? absl::StrCat(where, "/", LibraryName()) : where};
  }
  std::string errors;
  for (const std::string& pattern : patterns) {
    for (const std::string& path : Matches(pattern)) {
      if (void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return FunctionsOf(library, path);
      absl::StrAppend(&errors, "; ", dlerror());
    }
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "cuBLAS (", LibraryName(), ") is not here; it comes with the CUDA toolkit and with Python's package ",
      "nvidia-cublas, or worker.cublas says where it is. Looked for: ", absl::StrJoin(patterns, ", "), errors));
}

}  // namespace lodestone::kernels
