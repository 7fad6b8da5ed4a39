#include "common/io/output_file.h"

#include <cstdlib>
#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone {
namespace {

using testing::HasSubstr;

TEST(OutputFile, IsCheckedBeforeItIsOpened) {
  const std::string folder = std::string(std::getenv("TEST_TMPDIR")) + "/outputs";
  std::filesystem::create_directory(folder);
  EXPECT_TRUE(OutputFile::Check(folder + "/new").ok());
  EXPECT_TRUE(OutputFile::Check("/dev/stdout").ok());
  EXPECT_TRUE(OutputFile::Check("/dev/null").ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder)) << "nothing is begun";
  std::filesystem::create_symlink("nowhere/file", folder + "/link");
  EXPECT_THAT(std::string(OutputFile::Check(folder + "/link").message()),
              HasSubstr("there is no folder " + folder + "/nowhere: make it first"));
  std::filesystem::create_symlink("loop", folder + "/loop");
  EXPECT_THAT(std::string(OutputFile::Check(folder + "/loop").message()), HasSubstr("levels of symbolic links"));
  for (const auto& [path, why] :
       {std::pair<std::string, std::string>(folder, "is a folder, and cannot be written as a file"),
        {folder + "/missing/file", "there is no folder " + folder + "/missing"}}) {
    EXPECT_THAT(std::string(OutputFile::Check(path).message()), HasSubstr(why));
    EXPECT_EQ(OutputFile::Open(path).status(), OutputFile::Check(path));
  }
}

}  // namespace
}  // namespace lodestone
