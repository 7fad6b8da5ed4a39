#include <sys/stat.h>
#include <zstd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "common/base/limits.h"
#include "common/base/random.h"
#include "tests/worker/data/test_files.h"
#include "worker/data/line_reader.h"

namespace lodestone::worker {
namespace {

std::vector<std::string> Lines(const std::string& path) {
  auto reader = LineReader::Open(path);
  EXPECT_TRUE(reader.ok()) << reader.status();
  std::vector<std::string> lines;
  absl::string_view line;
  while (true) {
    const auto found = reader->Next(&line);
    EXPECT_TRUE(found.ok()) << found.status();
    if (!found.ok() || !*found) return lines;
    lines.emplace_back(line);
    EXPECT_EQ(reader->line_number(), lines.size());
  }
}

TEST(LineReader, TakesAnyKindOfLineEnd) {
  const std::vector<std::string> expected = {"a", "", "b", "c"};
  EXPECT_EQ(Lines(WriteFile("lf", "a\n\nb\nc\n")), expected);
  EXPECT_EQ(Lines(WriteFile("no_last", "a\n\nb\nc")), expected);
  EXPECT_EQ(Lines(WriteFile("crlf", "a\r\n\r\nb\r\nc\r\n")), expected);
  EXPECT_EQ(Lines(WriteFile("bom",
                            "\xef\xbb\xbf"
                            "a\n\nb\nc")),
            expected);
  EXPECT_TRUE(Lines(WriteFile("empty", "")).empty());
  EXPECT_TRUE(Lines(WriteFile("only_bom", "\xef\xbb\xbf")).empty());
}

TEST(LineReader, ReadsLinesAcrossItsBufferAndLongerThanIt) {
  std::string content;
  std::vector<std::string> expected;
  for (int i = 0; i < 40; ++i) {
    expected.push_back(std::string(1000 + 98765 * i, static_cast<char>('a' + i % 26)));
    content += expected.back() + "\n";
  }
  EXPECT_EQ(Lines(WriteFile("long", content)), expected);
  EXPECT_EQ(Lines(WriteFile("long.gz", Packed(content))), expected);
}

TEST(LineReader, ReadsAGzOfSeveralMembers) {
  EXPECT_EQ(Lines(WriteFile("members.gz", Packed("a\nb") + Packed("c\nd\n") + Packed("e"))),
            (std::vector<std::string>{"a", "bc", "d", "e"}));
}

TEST(LineReader, LengthensALineByTheNextOnes) {
  auto reader = LineReader::Open(WriteFile("extend", "a\r\nb\r\nc"));
  absl::string_view line;
  ASSERT_TRUE(*reader->Next(&line));
  ASSERT_TRUE(*reader->Extend(&line));
  EXPECT_EQ(line, "a\r\nb");
  EXPECT_EQ(reader->line_number(), 1);
  ASSERT_TRUE(*reader->Extend(&line));
  EXPECT_EQ(line, "a\r\nb\r\nc");
  EXPECT_FALSE(*reader->Extend(&line));
  EXPECT_EQ(line, "a\r\nb\r\nc");
}

TEST(LineReader, RefusesLinesThatAreTooLong) {
  const std::string path = WriteFile("too_long", "short\n" + std::string(limits::kLineBytesMax + 1, 'x') + "\n");
  auto reader = LineReader::Open(path);
  absl::string_view line;
  ASSERT_TRUE(*reader->Next(&line));
  const auto found = reader->Next(&line);
  ASSERT_FALSE(found.ok());
  EXPECT_THAT(std::string(found.status().message()), testing::HasSubstr(path + ":2: "));
}

TEST(Files, TellsACutOffGzWithItsName) {
  std::string content;
  for (int i = 0; i < 20000; ++i) content += "1 " + std::to_string(i + 1) + ":1\n";
  const std::string packed = Packed(content);
  for (size_t cut : {packed.size() - 4, packed.size() / 2, size_t{15}, size_t{5}}) {
    const std::string path = WriteFile("cut.gz", packed.substr(0, cut));
    ExpectError(Load(FilesConfig(v1::DataConfig::LIBSVM, {path})), {path, "cut off"});
  }
}

TEST(Files, TellsADamagedGzWithItsName) {
  std::string content;
  for (int i = 0; i < 20000; ++i) content += "1 " + std::to_string(i + 1) + ":1\n";
  std::string packed = Packed(content);
  packed[packed.size() - 6] ^= 1;  // In the checksum.
  const std::string path = WriteFile("damaged.gz", packed);
  ExpectError(Load(FilesConfig(v1::DataConfig::LIBSVM, {path})), {path, "damaged"});
}

TEST(Files, TellsMissingFilesAndGlobsWithoutMatch) {
  ExpectError(Load(FilesConfig(v1::DataConfig::LIBSVM, {TestPath("nowhere")})), {"data.train", TestPath("nowhere")});
  ExpectError(Load(FilesConfig(v1::DataConfig::AUTO, {TestPath("nowhere*.txt")})), {TestPath("nowhere*.txt")});
  const std::string train = WriteFile("train.svm", "1 1:1\n0 2:1\n");
  ExpectError(Load(FilesConfig(v1::DataConfig::LIBSVM, {train}, {TestPath("no_test")})), {"data.test", "no_test"});
  std::filesystem::create_directory(TestPath("folder"));
  ExpectError(Load(FilesConfig(v1::DataConfig::LIBSVM, {TestPath("folder")})), {"folder", "directory"});
}

TEST(Files, ReadsTheMatchesOfAGlobInOrderAndFilesInTheirs) {
  WriteFile("glob-b.txt", "2 1:1\n");
  WriteFile("glob-a.txt", "1 1:1\n");
  WriteFile("glob-c.txt.gz", Packed("3 1:1\n"));
  const std::string first = WriteFile("first.txt", "0 1:1\n");
  const auto data = Load(FilesConfig(v1::DataConfig::LIBSVM, {first, TestPath("glob-*")}));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(ReadAll(*data->train).labels, (std::vector<float>{0, 1, 2, 3}));
}

TEST(Files, TellsHowFarItIs) {
  std::string content;
  for (int i = 0; i < 30000; ++i) content += std::to_string(i % 2) + " " + std::to_string(i + 1) + ":1\n";
  const auto config = FilesConfig(v1::DataConfig::LIBSVM, {WriteFile("progress.txt", content)},
                                  {WriteFile("progress.gz", Packed(content))});
  std::vector<uint64_t> dones;
  uint64_t last_total = 0;
  ASSERT_TRUE(LoadData(config, LabelKind::kClass, {}, true, [&](uint64_t done, uint64_t total) {
                dones.push_back(done);
                last_total = total;
              }).ok());
  EXPECT_GT(dones.size(), 4);
  EXPECT_TRUE(std::is_sorted(dones.begin(), dones.end()));
  EXPECT_EQ(dones.back(), last_total);
  EXPECT_EQ(last_total, content.size() + std::filesystem::file_size(TestPath("progress.gz")));
}

// `content` as a zstd of one frame.
std::string PackedByZstd(const std::string& content) {
  std::string packed(ZSTD_compressBound(content.size()), '\0');
  const size_t size = ZSTD_compress(packed.data(), packed.size(), content.data(), content.size(), 3);
  EXPECT_FALSE(ZSTD_isError(size));
  packed.resize(size);
  return packed;
}

TEST(LineReader, ReadsAZstdOfSeveralFrames) {
  EXPECT_EQ(Lines(WriteFile("frames.zst",
                            PackedByZstd("a\nb") + PackedByZstd("c\nd\n") + PackedByZstd("") + PackedByZstd("e"))),
            (std::vector<std::string>{"a", "bc", "d", "e"}));
  EXPECT_TRUE(Lines(WriteFile("empty.zst", PackedByZstd(""))).empty());
}

TEST(LineReader, ReadsAZstdThatBeginsWithASkippableFrame) {
  const std::string skipped(
      "\x5a\x2a\x4d\x18\x03\x00\x00\x00"
      "abc",
      11);  // RFC 8878, 3.1.2; as pzstd writes them.
  EXPECT_EQ(Lines(WriteFile("skippable.zst", skipped + PackedByZstd("a\nb\n"))), (std::vector<std::string>{"a", "b"}));
}

TEST(LineReader, ReadsALongZstd) {
  std::string content;
  std::vector<std::string> expected;
  for (int i = 0; i < 300'000; ++i) {
    expected.push_back(std::to_string(RandomBits(1, i)));
    content += expected.back() + "\n";
  }
  EXPECT_EQ(Lines(WriteFile("long.zst", PackedByZstd(content))), expected);
  // Much that comes of little.
  EXPECT_EQ(Lines(WriteFile("zeros.zst", PackedByZstd(std::string(3'000'000, '\n')))).size(), 3'000'000u);
}

TEST(Files, TellsACutOffOrDamagedZstdWithItsName) {
  std::string content;
  for (int i = 0; i < 20000; ++i) content += "1 " + std::to_string(RandomBits(2, i)) + ":1\n";
  const std::string packed = PackedByZstd(content);
  for (size_t cut : {packed.size() - 1, packed.size() / 2, size_t{5}}) {
    const std::string path = WriteFile("cut.zst", packed.substr(0, cut));
    ExpectError(Load(FilesConfig(v1::DataConfig::LIBSVM, {path})), {path, "cut off"});
  }
  const std::string path = WriteFile("garbage.zst", packed + "garbage");
  ExpectError(Load(FilesConfig(v1::DataConfig::LIBSVM, {path})), {path, "damaged"});
}

// Regression: a pipe was opened three times, and what had been read of it by then was lost without a word.
TEST(Files, APipeIsRefused) {
  const std::string pipe = TestPath("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const auto format : {v1::DataConfig::AUTO, v1::DataConfig::LIBSVM, v1::DataConfig::CSV, v1::DataConfig::PARQUET,
                            v1::DataConfig::IDX}) {
    v1::Config config = FilesConfig(format, {pipe});
    if (format == v1::DataConfig::IDX) config.mutable_data()->add_train_labels(WriteFile("labels", ""));
    ExpectError(Load(config), {pipe + ": is no plain file", "write it to a file"});
  }
}

TEST(LineReader, ReadsAGzWithZerosBehindIt) {
  EXPECT_EQ(Lines(WriteFile("zeros.gz", Packed("a\n") + Packed("b\n") + std::string(1'000'000, '\0'))),
            (std::vector<std::string>{"a", "b"}));
}

// Regression: what followed the last member was left out without a word, a whole file that was not packed, for example.
TEST(Files, TellsWhatIsNotPackedBehindAGz) {
  const std::string member = Packed("1 1:1\n0 2:1\n"), plain = "1 3:1\n";
  for (const std::string& content : {member + plain, member + member + plain, member + std::string(3, '\0') + plain,
                                     member + std::string(3, '\0') + member, member + "\x1f" + plain}) {
    const std::string path = WriteFile("and_more.gz", content);
    const auto loaded = Load(FilesConfig(v1::DataConfig::LIBSVM, {path}));
    EXPECT_EQ(loaded.status().code(), absl::StatusCode::kDataLoss) << loaded.status();
    ExpectError(loaded, {path, "the gz file is damaged near byte"});
  }
}

// Regression: two globs that match one file had it trained on twice, and with data.test_share its samples were in both
// sets.
TEST(Files, RefusesAFileThatIsThereTwice) {
  const std::string file = WriteFile("twice-a.svm", "1 1:1\n0 2:1\n"),
                    other = WriteFile("other-a.svm", "1 1:1\n0 2:1\n");
  const auto load = [](const std::vector<std::string>& train, const std::vector<std::string>& test) {
    return Load(FilesConfig(v1::DataConfig::LIBSVM, train, test));
  };
  ExpectError(load({file, TestPath("twice-*")}, {}), {"data.train: " + file + " is there twice", "one pattern"});
  const std::string link = TestPath("link.svm");
  std::filesystem::create_symlink(file, link);
  ExpectError(load({file, link}, {}), {"data.train: " + link + " is there twice, the other time as " + file});
  ExpectError(load({other}, {file, link}), {"data.test: " + link + " is there twice"});
  EXPECT_TRUE(load({file}, {other}).ok());
}

}  // namespace
}  // namespace lodestone::worker
