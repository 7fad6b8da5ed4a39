#include "common/security/token_file.h"

#include <sys/stat.h>

#include <cstdio>
#include <string>

#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/security/test_certificates.h"

namespace lodestone {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kReloadMs = 5000;

TEST(TokenFile, IsReadAgainWhenItsTimeHasComeAndItHasChanged) {
  const std::string path = MakeTestFolder() + "/token";
  ManualTime time;
  PutFile(path, "  first\n");
  const auto file = TokenFile::Open(path, kReloadMs, &time);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->Get(), "first");
  PutFile(path, "second");
  time.AdvanceMs(kReloadMs - 1);
  EXPECT_EQ((*file)->Get(), "first");
  time.AdvanceMs(1);
  EXPECT_EQ((*file)->Get(), "second");
}

TEST(TokenFile, WhatIsNoTokenDoesNotTakeThePlaceOfOne) {
  const std::string path = MakeTestFolder() + "/token";
  ManualTime time;
  PutFile(path, "good");
  const auto file = TokenFile::Open(path, kReloadMs, &time);
  ASSERT_TRUE(file.ok()) << file.status();
  for (const std::string& content : {std::string(), std::string("a b"), std::string(5000, 'x'), std::string("\xff")}) {
    PutFile(path, content);
    time.AdvanceMs(kReloadMs);
    EXPECT_EQ((*file)->Get(), "good") << content;
    const auto fresh = TokenFile::Open(path, kReloadMs, &time);
    EXPECT_EQ(fresh.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(fresh.status().message()), HasSubstr(path));
  }
  ASSERT_EQ(std::remove(path.c_str()), 0);
  time.AdvanceMs(kReloadMs);
  EXPECT_EQ((*file)->Get(), "good");
  PutFile(path, "better");
  time.AdvanceMs(kReloadMs);
  EXPECT_EQ((*file)->Get(), "better");
}

TEST(SecretFile, OfTooManyBytesIsAnError) {
  const std::string path = MakeTestFolder() + "/large";
  PutFile(path, std::string(limits::kSecretFileBytesMax, 'x'));
  EXPECT_TRUE(ReadSecretFile(path).ok());
  PutFile(path, std::string(limits::kSecretFileBytesMax + 1, 'x'));
  EXPECT_THAT(std::string(ReadSecretFile(path).status().message()), HasSubstr("longer than"));
}

TEST(SecretFile, KnowsWhetherEverybodyMayReadIt) {
  const std::string path = MakeTestFolder() + "/secret";
  PutFile(path, "x");
  EXPECT_FALSE(IsReadableByAll(path));
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  EXPECT_TRUE(IsReadableByAll(path));
  EXPECT_FALSE(IsReadableByAll(path + "-missing"));
}

}  // namespace
}  // namespace lodestone
