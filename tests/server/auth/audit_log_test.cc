#include "server/auth/audit_log.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/common/security/test_certificates.h"

namespace lodestone::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<nlohmann::json> LinesOf(const std::string& path) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

class AuditTest : public ::testing::Test {
 protected:
  void Open() {
    auto audit = Audit::Open(path_, &time_);
    ASSERT_TRUE(audit.ok()) << audit.status();
    audit_ = *std::move(audit);
  }

  const std::string path_ = MakeTestFolder() + "/audit.jsonl";
  ManualTime time_;
  std::unique_ptr<Audit> audit_;
};

TEST_F(AuditTest, ALineTellsWhoDidWhatAndHowItEnded) {
  ASSERT_NO_FATAL_FAILURE(Open());
  audit_->Write({"alice", "ipv4:10.0.0.7:5", "", "/lodestone.v1.Admin/Rollback", "table \"x\"\nversion 5\xff"}, "OK");
  const auto lines = LinesOf(path_);
  ASSERT_EQ(lines.size(), 1);
  EXPECT_EQ(lines[0]["time"], "1970-01-01T00:16:40.000Z");
  EXPECT_EQ(lines[0]["identity"], "alice");
  EXPECT_EQ(lines[0]["peer"], "ipv4:10.0.0.7:5");
  EXPECT_EQ(lines[0]["method"], "/lodestone.v1.Admin/Rollback");
  EXPECT_EQ(lines[0]["outcome"], "OK");
  EXPECT_EQ(lines[0]["what"], "table \"x\"\nversion 5\xef\xbf\xbd") << "what is no text does not spoil the line";
}

TEST_F(AuditTest, OnlyItsOwnerMayReadItAndItIsNeverCut) {
  ASSERT_NO_FATAL_FAILURE(Open());
  audit_->Write({"a", "", "", "m", ""}, "OK");
  ASSERT_NO_FATAL_FAILURE(Open());
  audit_->Write({"b", "", "", "m", ""}, "OK");
  EXPECT_EQ(LinesOf(path_).size(), 2);
  struct stat found;
  ASSERT_EQ(stat(path_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600);
}

// Regression: what came after a write that a full disk had cut was glued to its part, and neither could be read.
TEST_F(AuditTest, ALineAfterAPartOfOneIsALineOfItsOwn) {
  ASSERT_NO_FATAL_FAILURE(Open());
  audit_->Write({"a", "", "", "m", ""}, "OK");
  const auto size = std::filesystem::file_size(path_);
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit full = {size + 20, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  audit_->Write({"b", "", "", "m", ""}, "OK");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, before);
  EXPECT_FALSE(audit_->health().ok());
  ASSERT_EQ(std::filesystem::file_size(path_), size + 20);

  audit_->Write({"c", "", "", "m", ""}, "OK");
  EXPECT_TRUE(audit_->health().ok());
  std::ofstream(path_, std::ios::app) << "{\"cut";
  ASSERT_NO_FATAL_FAILURE(Open());
  audit_->Write({"d", "", "", "m", ""}, "OK");
  std::vector<std::string> whole;
  std::ifstream file(path_);
  for (std::string line; std::getline(file, line);) {
    const auto entry = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!entry.is_discarded()) whole.push_back(entry["identity"]);
  }
  EXPECT_THAT(whole, ElementsAre("a", "c", "d"));
}

TEST_F(AuditTest, AFloodOfDeniedCallsIsCountedNotWritten) {
  ASSERT_NO_FATAL_FAILURE(Open());
  constexpr int kFlood = 100'000;
  for (int i = 0; i < kFlood; ++i) audit_->WriteDenied({"", "", "curl", "/x", "no token was shown"});
  EXPECT_EQ(LinesOf(path_).size(), kAuditDeniedBurst);
  audit_->WriteDenied({"alice", "", "", "/y", "may not"});
  EXPECT_EQ(LinesOf(path_).size(), kAuditDeniedBurst + 1) << "what others are denied is not lost in it";
  audit_->Write({"bob", "", "", "/z", ""}, "OK");
  EXPECT_EQ(LinesOf(path_).size(), kAuditDeniedBurst + 2);

  time_.AdvanceMs(1000);
  audit_->CheckTime();
  auto lines = LinesOf(path_);
  ASSERT_EQ(lines.size(), kAuditDeniedBurst + 3);
  EXPECT_EQ(lines.back()["identity"], "");
  EXPECT_EQ(lines.back()["outcome"], "denied");
  EXPECT_EQ(lines.back()["what"],
            absl::StrCat(kFlood - kAuditDeniedBurst, " more calls were denied, and are not listed singly"));
  audit_->WriteDenied({"", "", "curl", "/x", "no token was shown"});
  lines = LinesOf(path_);
  EXPECT_EQ(lines.back()["agent"], "curl") << "after a second some are written again";
}

TEST_F(AuditTest, WhatWasCountedIsToldAtTheEnd) {
  ASSERT_NO_FATAL_FAILURE(Open());
  for (int i = 0; i < kAuditDeniedBurst + 7; ++i) audit_->WriteDenied({"a", "", "", "/x", "no"});
  audit_.reset();
  EXPECT_THAT(LinesOf(path_).back()["what"].get<std::string>(), HasSubstr("7 more calls"));
}

TEST_F(AuditTest, AFileThatWasMovedAwayIsBegunAnew) {
  ASSERT_NO_FATAL_FAILURE(Open());
  audit_->Write({"a", "", "", "m", ""}, "OK");
  ASSERT_EQ(std::rename(path_.c_str(), (path_ + ".1").c_str()), 0);
  audit_->CheckTime();
  audit_->Write({"b", "", "", "m", ""}, "OK");
  EXPECT_EQ(LinesOf(path_ + ".1").size(), 1);
  ASSERT_EQ(LinesOf(path_).size(), 1);
  EXPECT_EQ(LinesOf(path_)[0]["identity"], "b");
}

TEST(Audit, AFileThatCannotBeWrittenIsAnErrorAtTheStartAndKnownLater) {
  ManualTime time;
  const auto missing = Audit::Open(MakeTestFolder() + "/no/such/folder", &time);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("security.audit_log: "));
  const auto full = Audit::Open("/dev/full", &time);
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_TRUE((*full)->health().ok());
  (*full)->Write({"a", "", "", "m", ""}, "OK");
  EXPECT_THAT(std::string((*full)->health().message()), HasSubstr("/dev/full: write"));
}

}  // namespace
}  // namespace lodestone::server
