#include "server/checkpoint/shard_file.h"

#include <fcntl.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/io/crc32c.h"
#include "common/io/record_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/checkpoint/fake_ps.h"

namespace lodestone::server {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::atomic<bool> kGoOn{false};

ShardFiles::Piece Write(const std::string& path, const Shard::State& state) {
  auto file = File::Open(path, O_WRONLY | O_CREAT | O_TRUNC);
  EXPECT_TRUE(file.ok()) << file.status();
  const auto size = WriteShardFile(state, kGoOn, &*file);
  EXPECT_TRUE(size.ok()) << size.status();
  return {path, *size};
}

TEST(ShardFile, HasTheSizeAndChecksumThatItIsSaidToHave) {
  FilledShard shard(0, 2, SpecsWith("adam {}"));
  shard.Run(1, 30);
  const ShardFiles::Piece piece = Write(FreshFolder() + "/f", shard->CollectState(nullptr));
  const std::string content = ReadWhole(piece.path);
  EXPECT_EQ(content.size(), piece.size.bytes);
  EXPECT_EQ(Crc32c(content.data(), content.size()), piece.size.crc32c);
}

class ShardFileWithEveryOptimizer : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Methods, ShardFileWithEveryOptimizer, testing::ValuesIn(AllMethods()),
                         [](const auto& info) { return info.param.substr(0, info.param.find(' ')); });

TEST_P(ShardFileWithEveryOptimizer, ASavedShardIsRestoredAndTakesTheSameNextSteps) {
  const auto specs = SpecsWith(GetParam());
  FilledShard original(1, 3, specs);
  original.Run(1, 50);
  ShardFiles files{1, original->version(), {Write(FreshFolder() + "/f", original->CollectState(nullptr))}};
  FilledShard restored(1, 3, specs);
  ASSERT_EQ(RestoreShard(files, &*restored), absl::OkStatus());
  EXPECT_EQ(restored.checksum(), original.checksum());
  restored.SetClock(original.now_ms());
  original.Run(51, 90);
  restored.Run(51, 90);
  EXPECT_EQ(restored.checksum(), original.checksum());
}

TEST(ShardFile, AChainOfChangesGivesTheNewestState) {
  const auto specs = SpecsWith("momentum {}");
  const std::string dir = FreshFolder();
  FilledShard original(0, 2, specs);
  original.Run(1, 50);
  ShardFiles files{0, original->version(), {Write(dir + "/0", original->CollectState(nullptr))}};
  for (int i = 1; i <= 5; ++i) {
    const Version before = original->version();
    if (i % 2 == 0) {
      original.Run(50 + i, 50 + i);
    } else {
      original.Push(9, i, i, /*rows=*/1);
    }
    files.version = original->version();
    files.pieces.insert(files.pieces.begin(), Write(dir + "/" + std::to_string(i), original->CollectState(&before)));
    FilledShard restored(0, 2, specs);
    ASSERT_EQ(RestoreShard(files, &*restored), absl::OkStatus());
    EXPECT_EQ(restored.checksum(), original.checksum()) << i;
  }
  EXPECT_LT(files.pieces.front().size.bytes, files.pieces.back().size.bytes / 2);
}

TEST(ShardFile, AShardWithoutTablesIsRestored) {
  Shard shard(3);
  ShardFiles files{3, 0, {Write(FreshFolder() + "/f", shard.CollectState(nullptr))}};
  Shard restored(3);
  EXPECT_EQ(RestoreShard(files, &restored), absl::OkStatus());
}

TEST(ShardFile, IsNotWrittenToItsEndOnceItIsToStop) {
  FilledShard shard(0, 1, SpecsWith("sgd {}"));
  const std::atomic<bool> stop{true};
  auto file = File::Open(FreshFolder() + "/f", O_WRONLY | O_CREAT);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(absl::IsCancelled(WriteShardFile(shard->CollectState(nullptr), stop, &*file).status()));
}

// A shard's file of one version, and one of changes on top of it.
class ShardFileTest : public ::testing::Test {
 protected:
  ShardFileTest() {
    shard_.Run(1, 20);
    files_.pieces = {Write(dir_ + "/old", shard_->CollectState(nullptr))};
    old_ = shard_->version();
    shard_.Run(21, 22);
    files_.pieces.insert(files_.pieces.begin(), Write(dir_ + "/new", shard_->CollectState(&old_)));
    files_.shard = 1;
    files_.version = shard_->version();
  }

  std::string Error(const ShardFiles& files) {
    FilledShard restored(1, 2, specs_);
    const uint64_t before = restored.checksum();
    const absl::Status status = RestoreShard(files, &*restored);
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_EQ(restored.checksum(), before);
    return std::string(status.message());
  }

  // What is said of the old file after `change` to its messages; the file and what is said of it are consistent.
  std::string ErrorAfter(const std::function<void(std::vector<v1::CheckpointRecord>*)>& change) {
    auto reader = RecordReader::Open(dir_ + "/old");
    EXPECT_TRUE(reader.ok());
    std::vector<v1::CheckpointRecord> messages;
    std::vector<ByteView> payloads;
    v1::CheckpointRecord message;
    ByteView payload;
    while ((*reader)->Next(&message, &payload) == RecordReader::Outcome::kRecord) {
      messages.push_back(message);
      payloads.push_back(payload);
    }
    change(&messages);
    std::string content;
    for (size_t i = 0; i < messages.size(); ++i) {
      const ByteView one = i < payloads.size() ? payloads[i] : ByteView();
      content += RecordBuilder(messages[i], {&one, 1}).Copy();
    }
    WriteWhole(dir_ + "/changed", content);
    const ShardFileSize size{content.size(), Crc32c(content.data(), content.size())};
    return Error({1, old_, {{dir_ + "/changed", size}}});
  }

  const std::vector<v1::TableSpec> specs_ = SpecsWith("rmsprop {}");
  const std::string dir_ = FreshFolder();
  FilledShard shard_{1, 2, specs_};
  Version old_ = 0;
  ShardFiles files_;
};

TEST_F(ShardFileTest, NamesAFileThatIsMissing) {
  files_.pieces[0].path += "x";
  EXPECT_THAT(Error(files_), HasSubstr("/newx: open"));
}

TEST_F(ShardFileTest, NamesAFileThatIsNotTheOneThatWasWritten) {
  ShardFiles files = files_;
  files.pieces[1].size.bytes += 1;
  EXPECT_THAT(Error(files), AllOf(HasSubstr("/old: has"), HasSubstr("its manifest says")));
  files = files_;
  files.pieces[1].size.crc32c += 1;
  EXPECT_THAT(Error(files), HasSubstr("/old: is another file than its manifest says"));
}

TEST_F(ShardFileTest, TakesOnlyFilesThatBuildOnEachOther) {
  ShardFiles files = files_;
  files.version += 1;
  EXPECT_THAT(Error(files), HasSubstr("the record at offset 0 says shard 1 at version"));
  files = files_;
  files.shard = 0;
  EXPECT_THAT(Error(files), HasSubstr("not shard 0"));
  files = files_;
  files.pieces.pop_back();
  EXPECT_THAT(Error(files), HasSubstr("builds on an older one, and there is none"));
  files = files_;
  files.pieces.push_back(files.pieces.back());
  EXPECT_THAT(Error(files), HasSubstr("the file is full, and there is an older one"));
  files = files_;
  std::swap(files.pieces[0], files.pieces[1]);
  EXPECT_THAT(Error(files), HasSubstr("not shard 1 at version"));
}

TEST_F(ShardFileTest, NamesARecordThatShouldNotBeThere) {
  using Messages = std::vector<v1::CheckpointRecord>;
  EXPECT_THAT(ErrorAfter([](Messages* m) { (*m)[0].mutable_header()->set_format(2); }), HasSubstr("says format 2"));
  EXPECT_THAT(ErrorAfter([](Messages* m) { m->erase(m->begin()); }), HasSubstr("should be a header"));
  EXPECT_THAT(ErrorAfter([](Messages* m) { (*m)[1] = (*m)[0]; }), HasSubstr("is a second header"));
  EXPECT_THAT(ErrorAfter([](Messages* m) { m->back().mutable_end()->set_records(1); }),
              HasSubstr("ends a file of 1 records, and there are"));
  EXPECT_THAT(ErrorAfter([](Messages* m) { m->pop_back(); }), HasSubstr("/changed: has no end"));
  EXPECT_THAT(ErrorAfter([](Messages* m) { m->push_back(m->back()); }), HasSubstr("comes after the end"));
  EXPECT_THAT(ErrorAfter([](Messages* m) { (*m)[1].clear_what(); }), HasSubstr("of a kind that this program"));
  EXPECT_THAT(ErrorAfter([](Messages* m) { (*m)[2].mutable_block()->set_block((*m)[1].block().block()); }),
              HasSubstr("is a second one for part"));
  EXPECT_THAT(ErrorAfter([](Messages* m) {
                for (v1::CheckpointRecord& each : *m) {
                  if (each.has_page()) each.mutable_page()->set_page(77);
                }
              }),
              HasSubstr("/changed: the record at offset"));
}

TEST_F(ShardFileTest, NamesARecordThatDoesNotFitTheTables) {
  FilledShard restored(1, 2, SpecsWith("adam {}"));
  const absl::Status status = RestoreShard(files_, &*restored);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("/new: the record at offset"), HasSubstr("table `dense`, block")));
}

TEST_F(ShardFileTest, AMissingPageIsNamedWithTheFile) {
  EXPECT_THAT(ErrorAfter([](std::vector<v1::CheckpointRecord>* m) {
                for (v1::CheckpointRecord& each : *m) {
                  if (each.has_page() && each.page().page() == 1) each.mutable_page()->set_page(1u << 20);
                }
              }),
              HasSubstr("/changed: table `rows/"));
}

}  // namespace
}  // namespace lodestone::server
