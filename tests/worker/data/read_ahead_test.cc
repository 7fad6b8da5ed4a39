#include "worker/data/read_ahead.h"

#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/test_files.h"

namespace lodestone::worker {
namespace {

using ::testing::HasSubstr;

// So many samples, each with a text that the next one overwrites; every tenth is malformed. Then `end`.
class CountingReader final : public SampleReader {
 public:
  CountingReader(uint64_t samples, absl::Status end) : samples_(samples), end_(std::move(end)) {}

  absl::StatusOr<LineOutcome> Next(ParsedLine* parsed, LineError* error) override {
    if (next_ == samples_) {
      if (!end_.ok()) return end_;
      return LineOutcome::kBlank;
    }
    label_ = absl::StrCat("label ", next_);
    parsed->label = label_;
    parsed->keys = {next_};
    if (next_ % 10 == 9) error->message = absl::StrCat("bad ", next_);
    return next_++ % 10 == 9 ? LineOutcome::kMalformed : LineOutcome::kSample;
  }
  uint64_t position() const override { return next_; }
  std::string PlaceOf(uint64_t position, const LineError&) const override { return absl::StrCat("at ", position); }
  uint64_t file_offset() const override { return 3 * next_; }
  uint64_t bytes_parsed() const override { return 5 * next_; }

 private:
  const uint64_t samples_;
  const absl::Status end_;
  uint64_t next_ = 0;
  std::string label_;
};

TEST(ReadAhead, GivesWhatItsReaderGives) {
  for (const uint64_t samples : {0, 1, 255, 256, 257, 10'000}) {
    ReadAhead ahead(std::make_unique<CountingReader>(samples, absl::OkStatus()));
    ParsedLine parsed;
    for (uint64_t i = 0; i < samples; ++i) {
      LineError error;
      const auto outcome = ahead.Next(&parsed, &error);
      ASSERT_TRUE(outcome.ok());
      ASSERT_EQ(*outcome, i % 10 == 9 ? LineOutcome::kMalformed : LineOutcome::kSample);
      ASSERT_EQ(error.message, i % 10 == 9 ? absl::StrCat("bad ", i) : "");
      ASSERT_EQ(parsed.label, absl::StrCat("label ", i));
      ASSERT_EQ(parsed.keys, std::vector<Key>{i});
      ASSERT_EQ(ahead.PlaceOf(ahead.position(), error), absl::StrCat("at ", i + 1));
    }
    for (int again = 0; again < 2; ++again) {
      LineError error;
      const auto outcome = ahead.Next(&parsed, &error);
      ASSERT_TRUE(outcome.ok());
      EXPECT_EQ(*outcome, LineOutcome::kBlank);
    }
    EXPECT_EQ(ahead.file_offset(), 3 * samples);
    EXPECT_EQ(ahead.bytes_parsed(), 5 * samples);
  }
}

TEST(ReadAhead, AnErrorComesBehindTheSamplesBeforeIt) {
  ReadAhead ahead(std::make_unique<CountingReader>(300, absl::DataLossError("cut off")));
  ParsedLine parsed;
  LineError error;
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(ahead.Next(&parsed, &error).ok()) << i;
  EXPECT_EQ(ahead.Next(&parsed, &error).status().message(), "cut off");
}

// A reader that finds no memory for its third sample.
class LargeReader final : public SampleReader {
 public:
  absl::StatusOr<LineOutcome> Next(ParsedLine*, LineError*) override {
    if (next_++ == 2) throw std::bad_alloc();
    return LineOutcome::kSample;
  }
  uint64_t position() const override { return next_; }
  std::string PlaceOf(uint64_t, const LineError&) const override { return ""; }
  uint64_t file_offset() const override { return 0; }
  uint64_t bytes_parsed() const override { return 0; }

 private:
  uint64_t next_ = 0;
};

// Regression: it ended the process, for no one caught it in the thread.
TEST(ReadAhead, AMissingMemoryIsAnErrorBehindTheSamplesBeforeIt) {
  ReadAhead ahead(std::make_unique<LargeReader>());
  ParsedLine parsed;
  LineError error;
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(ahead.Next(&parsed, &error).ok()) << i;
  EXPECT_EQ(ahead.Next(&parsed, &error).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(ReadAhead, OneThatIsLeftEndsItsThread) {
  ReadAhead unread(std::make_unique<CountingReader>(1'000'000, absl::OkStatus()));
  ReadAhead begun(std::make_unique<CountingReader>(1'000'000, absl::OkStatus()));
  ParsedLine parsed;
  LineError error;
  EXPECT_TRUE(begun.Next(&parsed, &error).ok());
}

class ThreadsTest : public ::testing::Test {
 protected:
  // Seven files, of which one is empty but for its header; line 3 of the fifth is malformed.
  ThreadsTest() {
    config_ = FilesConfig(v1::DataConfig::CSV, {});
    for (int file = 0; file < 7; ++file) {
      std::string text = "kind,age,city\n";
      for (int i = 0; file != 2 && i < 300 * (file + 1); ++i) {
        absl::StrAppend(&text, "k", (i + file) % 5, ",", file == 4 && i == 1 ? "old" : absl::StrCat(i % 71), ",c",
                        i * file % 37, "\n");
      }
      config_.mutable_data()->add_train(WriteFile(absl::StrCat("part", file, ".csv"), text));
    }
    config_.mutable_data()->set_numeric(v1::STANDARDIZE);
    v1::CsvConfig& csv = *config_.mutable_data()->mutable_csv();
    csv.set_label("kind");
    csv.add_numeric("age");
    csv.add_categorical("city");
    (*csv.mutable_bucket())["age"] = v1::CsvConfig::QUANTILES;
  }

  v1::Config config_;
};

TEST_F(ThreadsTest, AnyNumberOfThemReadsTheSameSamplesInTheSameOrder) {
  config_.mutable_data()->set_bad_lines_max(1);
  const auto alone = Load(config_);
  ASSERT_TRUE(alone.ok()) << alone.status();
  const Batch expected = ReadAll(*alone->train);
  EXPECT_EQ(expected.size, 300u * (1 + 2 + 4 + 5 + 6 + 7) - 1);
  for (const uint32_t threads : {2, 3, 16}) {
    config_.mutable_worker()->set_threads(threads);
    const auto data = Load(config_);
    ASSERT_TRUE(data.ok()) << data.status();
    const Batch batch = ReadAll(*data->train);
    EXPECT_EQ(batch.labels, expected.labels) << threads;
    EXPECT_EQ(batch.numeric, expected.numeric) << threads;
    EXPECT_EQ(batch.keys, expected.keys) << threads;
    EXPECT_EQ(data->schema.description.SerializeAsString(), alone->schema.description.SerializeAsString());
    EXPECT_EQ(data->parsed_bytes, alone->parsed_bytes);
  }
}

TEST_F(ThreadsTest, AMalformedLineIsNamedByItsFileAndLine) {
  const std::string expected(Load(config_).status().message());
  EXPECT_THAT(expected, HasSubstr("part4.csv:3:4"));
  config_.mutable_worker()->set_threads(4);
  EXPECT_EQ(Load(config_).status().message(), expected);
  config_.mutable_data()->add_train(TestPath("missing.csv"));
  EXPECT_FALSE(Load(config_).ok());
}

}  // namespace
}  // namespace lodestone::worker
