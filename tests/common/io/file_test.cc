#include "common/io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A folder of the test's own.
std::string Folder() {
  std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/file_XXXXXX";
  EXPECT_NE(mkdtemp(path.data()), nullptr);
  return path;
}

std::string Content(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

TEST(File, ContinuesShortAndInterruptedWrites) {
  int calls_made = 0;
  FileCalls calls = FileCalls::System();
  calls.writev = [&calls_made](int fd, const iovec* pieces, int) -> ssize_t {
    if (++calls_made % 3 == 0) {
      errno = EINTR;
      return -1;
    }
    const iovec some = {pieces[0].iov_base, std::min<size_t>(pieces[0].iov_len, 2)};
    return ::writev(fd, &some, 1);
  };
  const std::string path = Folder() + "/f";
  auto file = File::Open(path, O_WRONLY | O_CREAT, &calls);
  ASSERT_TRUE(file.ok()) << file.status();
  std::string a = "abcde", b, c = "f", d = "ghi";
  std::vector<iovec> pieces;
  for (std::string* piece : {&b, &a, &b, &c, &d, &b}) pieces.push_back({piece->data(), piece->size()});
  ASSERT_TRUE(file->Write(pieces).ok());
  EXPECT_EQ(Content(path), "abcdefghi");
}

TEST(File, WritesMorePiecesThanOneCallTakes) {
  const std::string path = Folder() + "/f";
  auto file = File::Open(path, O_WRONLY | O_CREAT);
  ASSERT_TRUE(file.ok());
  std::string expected;
  for (int i = 0; i < 5000; ++i) expected += static_cast<char>('a' + i % 26);
  std::vector<iovec> pieces;
  for (char& c : expected) pieces.push_back({&c, 1});
  ASSERT_TRUE(file->Write(pieces).ok());
  EXPECT_EQ(Content(path), expected);
}

TEST(File, ErrorsNameThePathTheCallAndTheReason) {
  FileCalls calls = FileCalls::System();
  calls.writev = [](int, const iovec*, int) -> ssize_t { return errno = ENOSPC, -1; };
  calls.fdatasync = [](int) { return errno = EIO, -1; };
  calls.ftruncate = [](int, off_t) { return errno = EROFS, -1; };
  const std::string path = Folder() + "/f";
  auto file = File::Open(path, O_WRONLY | O_CREAT, &calls);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->Write("x").message(), path + ": writev: No space left on device");
  EXPECT_EQ(file->Write("x").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(file->Sync().message(), path + ": fdatasync: Input/output error");
  EXPECT_EQ(file->Truncate(0).message(), path + ": ftruncate: Read-only file system");
  const auto missing = File::Open(path + "/g", O_RDONLY);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr(path + "/g: open: Not a directory"));
  EXPECT_EQ(File::Open(path + "2", O_RDONLY).status().code(), absl::StatusCode::kNotFound);
}

TEST(File, ACallThatWritesNothingIsAnErrorAndNotALoop) {
  FileCalls calls = FileCalls::System();
  calls.writev = [](int, const iovec*, int) -> ssize_t { return 0; };
  auto file = File::Open(Folder() + "/f", O_WRONLY | O_CREAT, &calls);
  ASSERT_TRUE(file.ok());
  EXPECT_FALSE(file->Write("x").ok());
  EXPECT_TRUE(file->Write("").ok());
}

TEST(File, ReadsAtAnOffsetAsMuchAsThereIs) {
  const std::string path = Folder() + "/f";
  std::ofstream(path) << "0123456789";
  const auto file = File::Open(path, O_RDONLY);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(*file->Size(), 10u);
  char bytes[8] = {};
  EXPECT_EQ(*file->ReadAt(2, bytes, 3), 3u);
  EXPECT_EQ(std::string(bytes), "234");
  EXPECT_EQ(*file->ReadAt(7, bytes, 8), 3u);
  EXPECT_EQ(*file->ReadAt(10, bytes, 8), 0u);
}

TEST(File, MakesFoldersWithThoseAboveThem) {
  const std::string top = Folder();
  EXPECT_TRUE(MakeFolders(top + "/a/b//c/").ok());
  EXPECT_TRUE(MakeFolders(top + "/a/b/c").ok());
  std::ofstream(top + "/a/file") << "x";
  EXPECT_THAT(std::string(MakeFolders(top + "/a/file").message()), HasSubstr("is not a folder"));
  EXPECT_THAT(std::string(MakeFolders(top + "/a/file/x").message()), HasSubstr("a/file"));
  EXPECT_FALSE(MakeFolders("").ok());
  const auto names = ListFolder(top + "/a");
  ASSERT_TRUE(names.ok());
  EXPECT_THAT(*names, ElementsAre("b", "file"));
  EXPECT_EQ(ListFolder(top + "/z").status().code(), absl::StatusCode::kNotFound);
}

TEST(File, ReplacesAFileWholly) {
  const std::string dir = Folder();
  for (const std::string content : {"first and long", "second"}) {
    ASSERT_TRUE(ReplaceFile(dir + "/f", content).ok());
    EXPECT_EQ(Content(dir + "/f"), content);
  }
  EXPECT_THAT(*ListFolder(dir), ElementsAre("f"));
  EXPECT_THAT(std::string(ReplaceFile(dir + "/none/f", "x").message()), HasSubstr("none/f: there is no folder"));

  ASSERT_EQ(mkdir((dir + "/taken").c_str(), 0700), 0);
  EXPECT_THAT(std::string(ReplaceFile(dir + "/taken", "x").message()), HasSubstr("taken: is a folder"));
  EXPECT_THAT(*ListFolder(dir), ElementsAre("f", "taken")) << "a temporary file is left";
}

// It once became a regular file: with `--summary /dev/null` of a worker that is root's, for all programs of the
// machine.
TEST(File, AFifoThatIsToBeReplacedIsWrittenTo) {
  const std::string dir = Folder();
  const std::string path = dir + "/fifo";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const auto reader = File::Open(path, O_RDONLY | O_NONBLOCK);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(ReplaceFile(path, "content"), absl::OkStatus());
  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  ASSERT_TRUE(S_ISFIFO(info.st_mode));
  char bytes[16] = {};
  EXPECT_EQ(read(reader->fd(), bytes, sizeof(bytes)), 7);
  EXPECT_STREQ(bytes, "content");
  EXPECT_THAT(*ListFolder(dir), ElementsAre("fifo"));
}

TEST(File, ALinkToADeviceIsNotReplaced) {
  const std::string dir = Folder();
  ASSERT_EQ(symlink("/dev/null", (dir + "/link").c_str()), 0);
  EXPECT_EQ(ReplaceFile(dir + "/link", "content"), absl::OkStatus());
  struct stat info;
  ASSERT_EQ(stat((dir + "/link").c_str(), &info), 0);
  EXPECT_TRUE(S_ISCHR(info.st_mode));
  EXPECT_THAT(*ListFolder(dir), ElementsAre("link"));
}

TEST(File, WhatALinkNamesIsReplacedAndTheLinkStays) {
  const std::string dir = Folder();
  ASSERT_EQ(mkdir((dir + "/real").c_str(), 0700), 0);
  std::ofstream(dir + "/real/file") << "old";
  ASSERT_EQ(symlink("real/file", (dir + "/link").c_str()), 0);
  ASSERT_EQ(symlink((dir + "/link").c_str(), (dir + "/link2").c_str()), 0);
  ASSERT_EQ(symlink("real/none", (dir + "/dangling").c_str()), 0);
  EXPECT_EQ(ReplaceFile(dir + "/link2", "new"), absl::OkStatus());
  EXPECT_EQ(ReplaceFile(dir + "/dangling", "made"), absl::OkStatus());
  EXPECT_EQ(Content(dir + "/real/file"), "new");
  EXPECT_EQ(Content(dir + "/real/none"), "made");
  struct stat info;
  for (const char* name : {"/link", "/link2", "/dangling"}) {
    ASSERT_EQ(lstat((dir + name).c_str(), &info), 0);
    EXPECT_TRUE(S_ISLNK(info.st_mode)) << name;
  }
  EXPECT_THAT(*ListFolder(dir), ElementsAre("dangling", "link", "link2", "real"));
  EXPECT_THAT(*ListFolder(dir + "/real"), ElementsAre("file", "none"));

  ASSERT_EQ(symlink("loop", (dir + "/loop").c_str()), 0);
  EXPECT_THAT(std::string(ReplaceFile(dir + "/loop", "x").message()), HasSubstr("loop: stat: Too many levels"));
}

// A shell's `>> FILE` once lost what the file held.
TEST(File, AnOpenDescriptorIsWrittenToWhereItStands) {
  for (const int flag : {0, O_APPEND}) {
    const std::string path = Folder() + "/f";
    std::ofstream(path) << "before ";
    const auto file = File::Open(path, O_WRONLY | flag);
    ASSERT_TRUE(file.ok());
    if (flag == 0) {
      ASSERT_EQ(lseek(file->fd(), 0, SEEK_END), 7);
    }
    EXPECT_EQ(ReplaceFile("/dev/fd/" + std::to_string(file->fd()), "one "), absl::OkStatus());
    EXPECT_EQ(ReplaceFile("/proc/self/fd/" + std::to_string(file->fd()), "two "), absl::OkStatus());
    EXPECT_EQ(Content(path), "before one two ");
  }
  EXPECT_THAT(std::string(ReplaceFile("/dev/fd/99999", "x").message()), HasSubstr("/dev/fd/99999: dup"));
}

TEST(File, RemovesAFileOnce) {
  const std::string path = Folder() + "/f";
  std::ofstream(path) << "x";
  EXPECT_TRUE(RemoveFile(path).ok());
  EXPECT_TRUE(RemoveFile(path).ok());
  EXPECT_FALSE(File::Open(path, O_RDONLY).ok());
}

}  // namespace
}  // namespace lodestone
