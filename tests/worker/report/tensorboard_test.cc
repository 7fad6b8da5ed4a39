#include "worker/report/tensorboard.h"

#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"
#include "tests/worker/report/event_file.h"

namespace lodestone::worker {
namespace {

using std::string_literals::operator""s;

// Worked out by hand from the format's description, in another language.
const std::string kVersionRecord =
    "\x18\x00\x00\x00\x00\x00\x00\x00"
    "\xa3\x7f\x4b\x22"
    "\x09\x00\x00\x00\xc0\x0b\x5a\xd6\x41\x1a\x0d"
    "brain.Event:2"
    "\x4c\xa9\xa4\x64"s;
const std::string kScalarRecord =
    "\x1b\x00\x00\x00\x00\x00\x00\x00"
    "\x1a\x0d\x9e\x13"
    "\x09\x00\x00\x00\xc0\x0b\x5a\xd6\x41\x10\xac\x02\x2a\x0d\x0a\x0b\x0a\x04"
    "loss"
    "\x15\x00\x00\x00\x3f"
    "\x14\xd8\x24\xf0"s;

TEST(TensorBoard, RecordsAreTheseBytes) {
  EXPECT_EQ(TensorBoardVersion(1.5e9), kVersionRecord);
  const std::vector<TensorBoardScalar> scalars = {{"loss", 0.5}};
  EXPECT_EQ(TensorBoardScalars(1.5e9, 300, scalars), kScalarRecord);
}

TEST(TensorBoard, AReaderGetsBackWhatWasWritten) {
  const std::vector<TensorBoardScalar> scalars = {
      {"test/auc", 0.1}, {"loss", -3e-30}, {"bad", std::numeric_limits<double>::infinity()}};
  const std::string file = TensorBoardVersion(12.25) + TensorBoardScalars(1.7e9 + 0.125, 1LL << 40, scalars) +
                           TensorBoardScalars(1.7e9, 0, {});
  const std::vector<tensorboard::Event> events = ParseEvents(file);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].wall_time(), 12.25);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_EQ(events[1].wall_time(), 1.7e9 + 0.125);
  EXPECT_EQ(events[1].step(), 1LL << 40);
  ASSERT_EQ(events[1].summary().value_size(), 3);
  for (size_t i = 0; i < scalars.size(); ++i) {
    EXPECT_EQ(events[1].summary().value(static_cast<int>(i)).tag(), scalars[i].tag);
    EXPECT_EQ(events[1].summary().value(static_cast<int>(i)).simple_value(), static_cast<float>(scalars[i].value));
  }
  EXPECT_EQ(events[2].summary().value_size(), 0);
}

// TensorBoard skips a value in which it finds no number.
TEST(TensorBoard, ANumberThatIsZeroIsWritten) {
  const std::vector<TensorBoardScalar> scalars = {{"staleness_pushes", 0}};
  const std::string record = TensorBoardScalars(1.7e9, 1, scalars);
  EXPECT_THAT(record, testing::HasSubstr("staleness_pushes\x15\0\0\0\0"s));
  const std::vector<tensorboard::Event> events = ParseEvents(record);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_TRUE(events[0].summary().value(0).has_simple_value());
}

TEST(TensorBoard, FilesAreNamedSoThatTheirOrderIsThatOfTime) {
  EXPECT_EQ(TensorBoardFileName(1795294547, "vm.example", 17), "events.out.tfevents.1795294547.vm.example.17");
  EXPECT_LT(TensorBoardFileName(999999999, "b", 2), TensorBoardFileName(1000000000, "a", 1));
}

// The vectors of RFC 3720, B.4, and the usual check value.
TEST(EventFile, TheReadersChecksumIsCrc32c) {
  std::string ascending;
  for (char i = 0; i < 32; ++i) ascending.push_back(i);
  EXPECT_EQ(BitwiseCrc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(BitwiseCrc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(BitwiseCrc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(BitwiseCrc32c(ascending), 0x46dd794eu);
}

TEST(EventFile, TheReaderSeesEveryByteThatIsWrong) {
  for (size_t i = 0; i < kScalarRecord.size(); ++i) {
    std::string damaged = kScalarRecord;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    SCOPED_TRACE(i);
    EXPECT_NONFATAL_FAILURE(ParseEvents(damaged), "no ");
  }
  EXPECT_NONFATAL_FAILURE(ParseEvents(kScalarRecord.substr(0, kScalarRecord.size() - 1)), "no length");
}

}  // namespace
}  // namespace lodestone::worker
