#include "tests/tools/release/release_run.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "tests/configs/deployment.h"

namespace lodestone {

std::string EmptyFolder(const std::string& name) {
  const std::string folder = absl::StrCat(std::getenv("TEST_TMPDIR"), "/", name);
  Do(absl::StrCat("rm -rf '", folder, "' && mkdir -p '", folder, "'"));
  return folder;
}

std::string Do(const std::string& command) { return DoFail(command, 0); }

std::string DoFail(const std::string& command, int exit_code) {
  int ended_with = 0;
  std::string output = RunShell(command, &ended_with);
  EXPECT_EQ(ended_with, exit_code) << command << "\n" << output;
  return output;
}

std::vector<std::string> LinesOf(const std::string& text) { return absl::StrSplit(text, '\n', absl::SkipEmpty()); }

std::string ProgramsFolder() {
  static const std::string* const folder = [] {
    auto* const made = new std::string(EmptyFolder("programs"));
    Do(absl::StrCat("cp -L server/ps ", *made, "/lodestone-ps && cp -L worker/worker ", *made,
                    "/lodestone-worker && cp -L tools/psctl/psctl worker/capi/liblodestone.so ", *made));
    return made;
  }();
  return *folder;
}

std::string Make(const std::string& tool, const std::string& name, const std::string& environment,
                 const std::string& pattern) {
  const std::string folder = EmptyFolder(name);
  Do(absl::StrCat(environment, " tools/", tool, " --binaries ", ProgramsFolder(), " --out '", folder, "'"));
  const std::vector<std::string> files = LinesOf(Do(absl::StrCat("find '", folder, "' -type f -name '", pattern, "'")));
  EXPECT_EQ(files.size(), 1u);
  return files.empty() ? "" : files[0];
}

std::string SmallTraining(const std::string& psctl, const std::string& config) {
  return absl::StrCat("env -i '", psctl, "' local '", config,
                      "' --set data.generated.train_samples=4000 --set data.generated.test_samples=1000 "
                      "--set cluster.servers=2 --set cluster.workers=2");
}

}  // namespace lodestone
