// Every bit that can be wrong is found: a small checkpoint, of which every byte of every file is changed in turn.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint_reader.h"
#include "tests/server/checkpoint/fake_ps.h"

namespace lodestone::server {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class DamageTest : public ::testing::Test {
 protected:
  static constexpr const char* kNewest = "auto-ps0-000002";

  DamageTest() {
    // The second one builds on the first.
    CheckpointWriter::Options options = ps_.options(dir_);
    options.keep = 1;
    const auto writer = FakePs::OpenWriter(options);
    for (const uint32_t push : {1, 2}) {
      ps_.Run(push, push);
      const auto result = writer->Write("", ps_.source());
      EXPECT_TRUE(result.ok()) << result.status();
    }
    FakePs restored(0, 1, 1, specs_);
    EXPECT_EQ(Restore(&restored), "");
    EXPECT_EQ(restored.checksums(), ps_.checksums());
  }

  // Restores the newest checkpoint by its name, and returns what was wrong.
  std::string Restore(FakePs* ps) const {
    const auto reader = CheckpointReader::Open(dir_, kNewest);
    if (!reader.ok()) return std::string(reader.status().message());
    std::vector<std::string> damage;
    const auto state = reader->Restore(&*ps->shards.at(0), &damage);
    return std::string(state.status().message());
  }

  // The files that the newest checkpoint needs.
  std::vector<std::string> Files() const {
    std::vector<std::string> files;
    for (const std::string& file : FilesBelow(dir_)) {
      if (file != "auto-ps0-000001/ps-0.manifest") files.push_back(dir_ + "/" + file);
    }
    EXPECT_EQ(files.size(), 3u);
    return files;
  }

  // A page of each embedding table.
  const std::vector<v1::TableSpec> specs_ = [] {
    std::vector<v1::TableSpec> specs = SpecsWith("adagrad {}", /*dim=*/20);
    specs.erase(specs.begin() + 1);
    specs.resize(2);
    return specs;
  }();
  const std::string dir_ = FreshFolder();
  FakePs ps_{0, 1, 1, specs_};
  FakePs fresh_{0, 1, 1, specs_};
};

TEST_F(DamageTest, ABitThatIsFlippedAnywhereIsReportedAndNothingIsLoaded) {
  const auto untouched = fresh_.checksums();
  for (const std::string& path : Files()) {
    const std::string content = ReadWhole(path);
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    const auto set = [&](size_t at, char byte) {
      file.seekp(static_cast<std::streamoff>(at));
      file.put(byte).flush();
      ASSERT_TRUE(file.good());
    };
    for (size_t at = 0; at < content.size(); ++at) {
      set(at, static_cast<char>(content[at] ^ 1 << at % 8));
      const std::string wrong = Restore(&fresh_);
      ASSERT_THAT(wrong, AllOf(HasSubstr(path), HasSubstr("offset"))) << at;
      ASSERT_EQ(fresh_.shards.at(0)->version(), 0u);
      set(at, content[at]);
    }
  }
  EXPECT_EQ(fresh_.checksums(), untouched);
  EXPECT_EQ(Restore(&fresh_), "");
}

TEST_F(DamageTest, AFileThatIsCutAnywhereIsReportedAndNothingIsLoaded) {
  const auto untouched = fresh_.checksums();
  for (const std::string& path : Files()) {
    const std::string content = ReadWhole(path);
    for (size_t size = content.size(); size-- > 0;) {
      std::filesystem::resize_file(path, size);
      ASSERT_THAT(Restore(&fresh_), HasSubstr(path)) << size;
      ASSERT_EQ(fresh_.shards.at(0)->version(), 0u);
    }
    WriteWhole(path, content);
  }
  EXPECT_EQ(fresh_.checksums(), untouched);
  EXPECT_EQ(Restore(&fresh_), "");
}

TEST_F(DamageTest, TheNewestWholeStateIsTakenInstead) {
  const std::string path = absl::StrCat(dir_, "/", kNewest, "/ps-0.shard-00000");
  std::string content = ReadWhole(path);
  content.back() ^= 1;
  WriteWhole(path, content);
  const auto reader = CheckpointReader::Open(dir_);
  ASSERT_TRUE(reader.ok());
  std::vector<std::string> damage;
  ASSERT_TRUE(reader->Restore(&*fresh_.shards.at(0), &damage).ok());
  EXPECT_THAT(damage, ElementsAre(HasSubstr(path)));
  FakePs expected(0, 1, 1, specs_);
  expected.Run(1, 1);
  EXPECT_EQ(fresh_.checksums(), expected.checksums());
}

}  // namespace
}  // namespace lodestone::server
