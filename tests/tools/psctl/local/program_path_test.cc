#include "tools/psctl/local/program_path.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::psctl {
namespace {

using testing::AllOf;
using testing::HasSubstr;

namespace fs = std::filesystem;

// A tree with a psctl in tools/psctl, as Bazel leaves it.
class ProgramPathTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = std::string(std::getenv("TEST_TMPDIR")) + "/tree";
    fs::remove_all(root_);
    fs::create_directories(Folder());
  }
  std::string Folder() const { return root_ + "/tools/psctl"; }
  // Makes a file of the tree, and returns its path.
  std::string Make(const std::string& path, bool executable = true) const {
    const fs::path file = fs::path(root_) / path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << "#!/bin/sh\n";
    fs::permissions(file, executable ? fs::perms::owner_all : fs::perms::owner_read);
    return file.string();
  }

  std::string root_;
};

TEST_F(ProgramPathTest, TheInstalledNameBesidePsctlComesFirst) {
  Make("server/ps");
  const std::string installed = Make("tools/psctl/lodestone-ps");
  const absl::StatusOr<std::string> found = FindProgram(Folder(), "ps", "server/ps");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(*found, installed);
}

TEST_F(ProgramPathTest, InABuildTreeItIsWhatWasBuilt) {
  const std::string built = Make("worker/worker");
  const absl::StatusOr<std::string> found = FindProgram(Folder(), "worker", "worker/worker");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(*found, built);
}

TEST_F(ProgramPathTest, TheSystemsPsBesidePsctlIsNotTaken) {
  Make("tools/psctl/ps");
  const absl::Status status = FindProgram(Folder(), "ps", "server/ps").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(Folder() + "/lodestone-ps"), HasSubstr(root_ + "/server/ps"), HasSubstr("--ps-binary")));
}

TEST_F(ProgramPathTest, WhatCannotBeExecutedIsPassedOver) {
  Make("tools/psctl/lodestone-worker", /*executable=*/false);
  fs::create_directories(root_ + "/worker/worker");
  EXPECT_EQ(FindProgram(Folder(), "worker", "worker/worker").status().code(), absl::StatusCode::kNotFound);
}

TEST(OwnFolder, IsThatOfTheRunningProgram) {
  const absl::StatusOr<std::string> folder = OwnFolder();
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ(*folder, fs::read_symlink("/proc/self/exe").parent_path().string());
}

}  // namespace
}  // namespace lodestone::psctl
