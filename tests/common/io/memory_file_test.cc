#include "common/io/memory_file.h"

#include <fcntl.h>

#include <string>

#include "common/io/file.h"
#include "common/security/secret_file.h"
#include "gtest/gtest.h"

namespace lodestone {
namespace {

TEST(MemoryFile, WhoOpensThePathGetsTheNewestContent) {
  const auto file = MemoryFile::Make("first");
  ASSERT_TRUE(file.ok()) << file.status();
  const std::string path = (*file)->path();
  EXPECT_EQ(*ReadSecretFile(path), "first");
  for (const std::string& content : {std::string("the second, which is longer"), std::string(), std::string("third")}) {
    ASSERT_TRUE((*file)->Replace(content).ok());
    EXPECT_EQ((*file)->path(), path);
    EXPECT_EQ(*ReadSecretFile(path), content);
  }
}

TEST(MemoryFile, WhoHasItOpenKeepsWhatHeHas) {
  const auto file = MemoryFile::Make("first");
  ASSERT_TRUE(file.ok()) << file.status();
  const auto open = File::Open((*file)->path(), O_RDONLY);
  ASSERT_TRUE(open.ok()) << open.status();
  ASSERT_TRUE((*file)->Replace("second").ok());
  char bytes[16];
  const auto read = open->ReadAt(0, bytes, sizeof(bytes));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(std::string(bytes, *read), "first");
}

}  // namespace
}  // namespace lodestone
