#include "tests/cluster/numpy_model.h"

#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/cluster/psctl_run.h"

namespace lodestone {

bool HasNumpy() { return std::system("/usr/bin/python3 -c 'import numpy' 2>/dev/null") == 0; }

std::vector<std::string> ByNumpy(const std::string& model, const std::string& data) {
  const std::string out = TestFile("numpy.txt");
  const std::string command =
      absl::StrCat("/usr/bin/python3 ", ProjectFile("tests/cluster/read_model.py"), " ", model, " ", data, " > ", out);
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  return Lines(out);
}

std::vector<std::string> Lines(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

}  // namespace lodestone
