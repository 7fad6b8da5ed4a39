#include "tests/chaos/disk_damage.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::chaos {
namespace {

// What a record looks like to those who only look where it ends.
std::string Record(uint32_t message_bytes, uint64_t payload_bytes) {
  std::string text(32 + message_bytes + payload_bytes + 4, 'x');
  std::memcpy(text.data() + 4, &message_bytes, sizeof(message_bytes));
  std::memcpy(text.data() + 8, &payload_bytes, sizeof(payload_bytes));
  return text;
}

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

class DiskDamage : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/log";
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  std::string Write(const std::string& name, const std::string& text) const {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  std::string folder_;
};

TEST_F(DiskDamage, FindsTheNewestSegmentOfEachLogOfTheNewestGeneration) {
  for (const char* name : {"000001-000-000009.log", "000002-000-000001.log", "000002-000-000010.log",
                           "000002-001-000003.log", "lock", "000003-000-000001.log.tmp"}) {
    Write(name, "");
  }
  const auto files = NewestSegments(folder_);
  ASSERT_TRUE(files.ok()) << files.status();
  ASSERT_EQ(files->size(), 2);
  EXPECT_EQ((*files)[0].path, folder_ + "/000002-000-000010.log");
  EXPECT_EQ((*files)[1].path, folder_ + "/000002-001-000003.log");
  EXPECT_TRUE(absl::IsNotFound(NewestSegments(folder_ + "/none").status()));
}

TEST_F(DiskDamage, TearsBehindTheLastRecordOnly) {
  const std::string records = Record(10, 0) + Record(20, 3000);
  for (uint64_t random = 0; random < 100; ++random) {
    const std::string path = Write("000001-000-000001.log", records + std::string(random % 3, '\0'));
    const auto torn = TearTail(path, random);
    ASSERT_TRUE(torn.ok()) << torn.status();
    ASSERT_TRUE(torn->has_value());
    const std::string text = Read(path);
    EXPECT_EQ(text.substr(0, records.size()), records);
    EXPECT_GT(text.size(), records.size());
    const auto extent = ExtentOf(path);
    EXPECT_EQ(extent->records, 2);
    EXPECT_EQ(extent->bytes, records.size());
    EXPECT_FALSE(extent->clean);
    EXPECT_EQ(*TearTail(path, random), std::nullopt) << "it is torn already";
  }
}

TEST_F(DiskDamage, FlipsOneBitOfARecordAndBack) {
  const std::string records = Record(10, 0) + Record(20, 300) + Record(5, 5);
  const std::string path = Write("000001-000-000001.log", records + "torn");
  for (uint64_t random = 0; random < 100; ++random) {
    const auto bit = ChooseBit(path, random);
    ASSERT_TRUE(bit.ok()) << bit.status();
    EXPECT_LT(bit->offset, records.size());
    EXPECT_LE(bit->record, bit->offset);
    EXPECT_TRUE(bit->record == 0 || bit->record == Record(10, 0).size() ||
                bit->record == Record(10, 0).size() + Record(20, 300).size());
    ASSERT_TRUE(Flip(*bit).ok());
    EXPECT_NE(Read(path), records + "torn");
    ASSERT_TRUE(Flip(*bit).ok());
    EXPECT_EQ(Read(path), records + "torn");
  }
}

TEST_F(DiskDamage, KnowsWhatElseAPsHasOnDisk) {
  for (const char* folder : {"/ps-1/log", "/ps-10", "/checkpoints/a"}) {
    std::filesystem::create_directories(folder_ + folder);
  }
  for (const char* name :
       {"ps-1/lock", "ps-1/state", "ps-1/log/000001-000-000001.log", "ps-10/state", "checkpoints/a/ps-1.manifest",
        "checkpoints/a/ps-1.shard-00003", "checkpoints/a/ps-10.manifest"}) {
    Write(name, "x");
  }
  EXPECT_THAT(OtherFiles(folder_, 1),
              testing::ElementsAre(folder_ + "/checkpoints/a/ps-1.manifest",
                                   folder_ + "/checkpoints/a/ps-1.shard-00003", folder_ + "/ps-1/state"));
  EXPECT_TRUE(OtherFiles(folder_ + "/none", 1).empty());
}

}  // namespace
}  // namespace lodestone::chaos
