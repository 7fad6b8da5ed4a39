#include "server/checkpoint/gone_back.h"

#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/checkpoint/fake_ps.h"

namespace lodestone::server {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

constexpr uint32_t kFewShards = 4;

class GoneBackTest : public ::testing::Test {
 protected:
  GoneBackTest() { EXPECT_TRUE(writer_->Write("named", ps_.source()).ok()); }

  GoneBack Found() const {
    const auto found = FindGoneBack(dir_, {"named"});
    EXPECT_TRUE(found.ok()) << found.status();
    return *found;
  }

  const std::string dir_ = FreshFolder();
  FakePs ps_{0, 1, kFewShards, SpecsWith("sgd {}")};
  const std::unique_ptr<CheckpointWriter> writer_ = ps_.OpenWriter(dir_);
};

TEST_F(GoneBackTest, TheNotesOfAllPsCountAndALaterLineageOfThem) {
  EXPECT_THAT(Found(), IsEmpty());
  ASSERT_TRUE(NoteGoneBack(dir_, {"named"}, 0, {{1, 5}, {2, 5}}).ok());
  ASSERT_TRUE(NoteGoneBack(dir_, {"named"}, 0, {{2, 3}, {3, 6}}).ok()) << "what it noted before stays";
  ASSERT_TRUE(NoteGoneBack(dir_, {"named"}, 7, {{1, 9}}).ok());
  EXPECT_THAT(Found(), ElementsAre(Pair(1, 9), Pair(2, 5), Pair(3, 6)));
  const auto other = FindGoneBack(dir_, {"other"});
  ASSERT_TRUE(other.ok());
  EXPECT_THAT(*other, IsEmpty());
}

TEST_F(GoneBackTest, WhatHasGoneBackOnceHasNotTwice) {
  ASSERT_TRUE(NoteGoneBack(dir_, {"named"}, 0, {{1, 5}, {2, 5}}).ok());
  ASSERT_TRUE(NoteGoneBack(dir_, {"named", 2}, 7, {{1, 4}}).ok());
  EXPECT_THAT(Found(), ElementsAre(Pair(1, 5), Pair(2, 5)));
  const auto twice = FindGoneBack(dir_, {"named", 2});
  ASSERT_TRUE(twice.ok());
  EXPECT_THAT(*twice, ElementsAre(Pair(1, 4)));
  ASSERT_TRUE(NoteGoneBack(dir_, {"named"}, 7, {{1, 9}}).ok());
  EXPECT_EQ(Found().at(1), 9u) << "it has been elsewhere, and back again";
  EXPECT_EQ(FindGoneBack(dir_, {"named", 2})->at(1), 4u) << "but not for the second time";
}

TEST_F(GoneBackTest, ANoteIsNoLeftoverOfACheckpointAndGoesWithIt) {
  ASSERT_TRUE(NoteGoneBack(dir_, {"named"}, 0, {{1, 5}}).ok());
  FakePs other(7, 8, kFewShards, SpecsWith("sgd {}"));
  ASSERT_TRUE(NoteGoneBack(dir_, {"named"}, 7, {{2, 5}}).ok());
  other.OpenWriter(dir_);  // It wrote nothing else of this checkpoint.
  // Regression: the note was removed with what a kill had left of writing it, and with a part that could not be
  // written.
  WriteWhole(absl::StrCat(dir_, "/named/ps-7.gone-back.tmp"), "half");
  const auto writer = other.OpenWriter(dir_);
  CheckpointWriter::Source source = other.source();
  source.shards = {2};
  source.collect = [](ShardId, const Version*) { return absl::ResourceExhaustedError("the disk is full"); };
  EXPECT_FALSE(writer->Write("named", source).ok());
  EXPECT_THAT(Found(), ElementsAre(Pair(1, 5), Pair(2, 5)));
  ASSERT_TRUE(writer_->Remove("named").ok());
  EXPECT_THAT(Found(), ElementsAre(Pair(2, 5)));
  ASSERT_TRUE(other.OpenWriter(dir_)->Remove("named").ok());
  EXPECT_FALSE(fs::exists(absl::StrCat(dir_, "/named")));
}

TEST_F(GoneBackTest, ADamagedNoteIsNamed) {
  ASSERT_TRUE(NoteGoneBack(dir_, {"named"}, 0, {{1, 5}}).ok());
  const std::string path = absl::StrCat(dir_, "/named/ps-0.gone-back");
  fs::resize_file(path, fs::file_size(path) - 1);
  const absl::Status status = FindGoneBack(dir_, {"named"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(path));
  EXPECT_EQ(NoteGoneBack(dir_, {"named"}, 0, {{2, 5}}).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace lodestone::server
