#include "common/io/record_file.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "common/base/limits.h"
#include "common/io/crc32c.h"
#include "common/io/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/log.pb.h"
#include "tests/common/wire/byte_runs.h"

namespace lodestone {
namespace {

using testing::HasSubstr;
using Outcome = RecordReader::Outcome;

const std::string& Path() {
  static const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/records";
  return path;
}

std::unique_ptr<RecordReader> OpenFile(const std::string& content, uint64_t bytes_max = UINT64_MAX) {
  unlink(Path().c_str());  // Faster than to overwrite it.
  std::ofstream(Path(), std::ios::binary) << content;
  auto reader = RecordReader::Open(Path(), bytes_max);
  EXPECT_TRUE(reader.ok()) << reader.status();
  return *std::move(reader);
}

ByteView View(const std::string& bytes) {
  return ByteView(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

std::string Bytes(const ByteView& view) {
  std::string bytes(view.size(), '\0');
  view.CopyTo(bytes.data());
  return bytes;
}

std::string RecordOf(const std::string& message, const std::string& payload) {
  const ByteView views[] = {View(payload)};
  return RecordBuilder(std::string_view(message), views).Copy();
}

// Three records: with both parts, without a payload, and with a payload that ends in zeros.
const std::vector<std::string>& Records() {
  static const std::vector<std::string> records = {RecordOf("message", "payload of the first"), RecordOf("second", ""),
                                                   RecordOf("third", std::string("values\0\0\0\0\0", 11))};
  return records;
}

std::string AllRecords() { return Records()[0] + Records()[1] + Records()[2]; }

// Reads whole records from the front and returns how many there are; `end` is what comes then.
size_t CountRecords(RecordReader* reader, Outcome* end) {
  size_t count = 0;
  RecordReader::Record record;
  while ((*end = reader->Next(&record)) == Outcome::kRecord) {
    EXPECT_EQ(RecordOf(std::string(record.message), Bytes(record.payload)), Records()[count]);
    ++count;
  }
  EXPECT_EQ(reader->Next(&record), *end);
  return count;
}

TEST(Crc32c, AgreesWithTheKnownValues) {
  EXPECT_EQ(Crc32c("123456789", 9), 0xe3069283u);
  EXPECT_EQ(Crc32c(nullptr, 0), 0u);
  const std::string zeros(32, '\0');  // RFC 3720, B.4.
  EXPECT_EQ(Crc32c(zeros.data(), zeros.size()), 0x8a9136aau);
}

TEST(Crc32c, ContinuesFromTheBytesBefore) {
  const std::string text = "The quick brown fox jumps over the lazy dog";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    const uint32_t front = Crc32c(text.data(), cut);
    EXPECT_EQ(Crc32c(text.data() + cut, text.size() - cut, front), Crc32c(text.data(), text.size()));
  }
}

TEST(RecordFile, GivesBackMessagesAndPayloads) {
  v1::LogRecord first, second;
  first.set_shard(3);
  first.set_version(1234567);
  second.set_session_opened(99);
  std::string numbers(100'000, '\0');
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<char>(i * 31);
  const server::ByteRuns front(numbers.data(), 1000, 7), rest(numbers.data() + 1000, numbers.size() - 1000, 1024);
  const ByteView views[] = {front.view(), ByteView(), rest.view()};
  const RecordBuilder with_payload(first, views), without(second, {});
  const std::string content = with_payload.Copy() + without.Copy();
  EXPECT_EQ(content.size(), with_payload.bytes() + without.bytes());
  const auto reader = OpenFile(content);
  EXPECT_EQ(reader->size(), content.size());
  v1::LogRecord read;
  ByteView payload, none;
  ASSERT_EQ(reader->Next(&read, &payload), Outcome::kRecord);
  EXPECT_EQ(read.SerializeAsString(), first.SerializeAsString());
  EXPECT_EQ(reader->offset(), 0u);
  ASSERT_EQ(reader->Next(&read, &none), Outcome::kRecord);
  EXPECT_EQ(read.session_opened(), 99u);
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(reader->offset(), with_payload.bytes());
  EXPECT_EQ(reader->Next(&read, &none), Outcome::kEnd);
  EXPECT_EQ(reader->offset(), content.size());
  EXPECT_TRUE(reader->error().ok());
  EXPECT_EQ(Bytes(payload), numbers) << "a payload is valid as long as the reader lives";
}

TEST(RecordFile, AHeadLiesInTheFileAsDocumented) {
  const std::string record = RecordOf("ab", "123456789");
  ASSERT_EQ(record.size(), kRecordHeadBytes + 2 + 9 + kRecordEndBytes);
  const unsigned char expected[] = {'L', 'S', 'R', '1', 2, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0};
  EXPECT_EQ(std::memcmp(record.data(), expected, sizeof(expected)), 0);
  uint32_t crcs[4];
  std::memcpy(crcs, record.data() + 16, 16);
  EXPECT_EQ(crcs[0], Crc32c("ab", 2));
  EXPECT_EQ(crcs[1], 0xe3069283u);
  EXPECT_EQ(crcs[2], 0u);
  EXPECT_EQ(crcs[3], Crc32c(record.data(), 28));
  EXPECT_EQ(record.substr(32), "ab123456789end\n");
}

TEST(RecordFile, AnEmptyFileAndAMissingOneAreToldApart) {
  const auto reader = OpenFile("");
  RecordReader::Record record;
  EXPECT_EQ(reader->Next(&record), Outcome::kEnd);
  EXPECT_TRUE(reader->error().ok());
  const auto missing = RecordReader::Open(Path() + ".none");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr(Path() + ".none"));
}

TEST(RecordFile, ARecordCutAnywhereIsTornAndThoseBeforeItAreRead) {
  const std::string content = AllRecords();
  size_t whole = 0, begin = 0;
  for (size_t length = 0; length < content.size(); ++length) {
    if (length == begin + Records()[whole].size()) begin += Records()[whole++].size();
    const auto reader = OpenFile(content.substr(0, length));
    Outcome end;
    EXPECT_EQ(CountRecords(reader.get(), &end), whole) << "cut to " << length;
    EXPECT_EQ(reader->offset(), begin);
    if (length == begin) {
      EXPECT_EQ(end, Outcome::kEnd) << "cut to " << length;
      continue;
    }
    EXPECT_EQ(end, Outcome::kTorn) << "cut to " << length;
    EXPECT_EQ(reader->error().code(), absl::StatusCode::kDataLoss);
    const std::string place = Path() + ": the record at offset " + std::to_string(begin);
    EXPECT_THAT(std::string(reader->error().message()), HasSubstr(place));
  }
}

TEST(RecordFile, ARecordThatEndsInZerosInsteadOfItselfIsTorn) {
  const std::string content = AllRecords();
  size_t whole = 0, begin = 0;
  for (size_t length = 0; length < content.size(); ++length) {
    if (length == begin + Records()[whole].size()) begin += Records()[whole++].size();
    // As long as it would be, shorter and longer; more than one piece of reading ahead.
    for (const size_t size : {content.size(), length + 1, length + 40, length + 600'000}) {
      if (length % 7 != 0 && size > length + 40) continue;
      std::string torn = content.substr(0, length);
      torn.resize(std::max(length + 1, size), '\0');
      const auto reader = OpenFile(torn);
      Outcome end;
      EXPECT_EQ(CountRecords(reader.get(), &end), whole) << length << " of " << size;
      EXPECT_EQ(end, Outcome::kTorn) << length << " of " << size;
      EXPECT_EQ(reader->offset(), begin);
    }
  }
}

TEST(RecordFile, AFlippedBitAnywhereIsDamage) {
  const std::string content = AllRecords();
  for (const size_t zeros : {0, 100}) {
    for (size_t bit = 0; bit < content.size() * 8; ++bit) {
      std::string damaged = content + std::string(zeros, '\0');
      damaged[bit / 8] ^= static_cast<char>(1 << bit % 8);
      size_t whole = 0, begin = 0;
      while (begin + Records()[whole].size() <= bit / 8) begin += Records()[whole++].size();
      const auto reader = OpenFile(damaged);
      Outcome end;
      EXPECT_EQ(CountRecords(reader.get(), &end), whole) << "bit " << bit;
      EXPECT_EQ(end, Outcome::kDamaged) << "bit " << bit;
      EXPECT_EQ(reader->offset(), begin);
      EXPECT_THAT(std::string(reader->error().message()),
                  HasSubstr("offset " + std::to_string(begin) + " is damaged: "));
    }
  }
}

TEST(RecordFile, BytesThatAreNoRecordAreDamageAlsoAtTheEnd) {
  for (const std::string rest : {"x", "LSRX", "some text that is longer than the head of a record"}) {
    const auto reader = OpenFile(AllRecords() + rest);
    Outcome end;
    EXPECT_EQ(CountRecords(reader.get(), &end), 3u);
    EXPECT_EQ(end, Outcome::kDamaged) << rest;
  }
}

// A record whose head is right and says these lengths, but whose other checksums are 0.
std::string WithLengths(uint32_t message_bytes, uint64_t payload_bytes, size_t size) {
  std::string record = RecordOf("", "");
  std::memcpy(record.data() + 4, &message_bytes, 4);
  std::memcpy(record.data() + 8, &payload_bytes, 8);
  const uint32_t crc = Crc32c(record.data(), 28);
  std::memcpy(record.data() + 28, &crc, 4);
  return record + std::string(size, 'x');
}

TEST(RecordFile, LengthsThatNoRecordHasAreDamageAndTakeNoMemory) {
  RecordReader::Record record;
  for (const auto& [message, payload] :
       std::vector<std::pair<uint32_t, uint64_t>>{{0, limits::kRecordPayloadBytesMax + 1},
                                                  {0, UINT64_MAX},
                                                  {0, UINT64_MAX - 35},
                                                  {UINT32_MAX, 0},
                                                  {limits::kRecordMessageBytesMax + 1, 0}}) {
    const auto reader = OpenFile(WithLengths(message, payload, 1000));
    EXPECT_EQ(reader->Next(&record), Outcome::kDamaged) << message << ", " << payload;
  }
  for (const auto& [message, payload] : std::vector<std::pair<uint32_t, uint64_t>>{
           {0, limits::kRecordPayloadBytesMax}, {limits::kRecordMessageBytesMax, 0}, {0, 1001}}) {
    const auto reader = OpenFile(WithLengths(message, payload, 1000 - kRecordEndBytes));
    EXPECT_EQ(reader->Next(&record), Outcome::kTorn) << message << ", " << payload;
  }
}

TEST(RecordFile, ReadsOnlyAsFarAsItIsTold) {
  const std::string content = AllRecords();
  Outcome end;
  EXPECT_EQ(CountRecords(OpenFile(content, Records()[0].size()).get(), &end), 1u);
  EXPECT_EQ(end, Outcome::kEnd);
  EXPECT_EQ(CountRecords(OpenFile(content, Records()[0].size() + 1).get(), &end), 1u);
  EXPECT_EQ(end, Outcome::kTorn);
  EXPECT_EQ(CountRecords(OpenFile(content, content.size() + 1).get(), &end), 3u);
  EXPECT_EQ(end, Outcome::kEnd);
}

TEST(RecordFile, AWholeRecordIsFoundBehindWhateverLiesBeforeIt) {
  const std::string first = RecordOf("one", "first"), second = RecordOf("two", "second"), third = RecordOf("three", "");
  for (const std::string& junk : {std::string(), std::string(100, '\0'), std::string("LSR1LSR1LSR1"),
                                  first.substr(0, first.size() - 1), std::string("LSR"), first.substr(3)}) {
    const auto reader = OpenFile(junk + second + third);
    RecordReader::Record record;
    ASSERT_TRUE(reader->Find(0, &record));
    EXPECT_EQ(record.message, "two");
    EXPECT_EQ(reader->offset(), junk.size());
    EXPECT_EQ(reader->next_offset(), junk.size() + second.size());
    EXPECT_EQ(reader->Next(&record), Outcome::kRecord);
    EXPECT_EQ(record.message, "three");
    EXPECT_FALSE(reader->Find(junk.size() + second.size() + 1, &record));
    EXPECT_FALSE(reader->unreadable());
  }
  const auto none = OpenFile(first.substr(0, first.size() - 1));
  RecordReader::Record record;
  EXPECT_FALSE(none->Find(0, &record));
  EXPECT_FALSE(OpenFile("")->Find(0, &record));
}

TEST(RecordFile, AMessageOfAnotherTypeIsDamage) {
  const auto reader = OpenFile(RecordOf("\xff\xff\xff", ""));
  v1::LogRecord message;
  ByteView payload;
  EXPECT_EQ(reader->Next(&message, &payload), Outcome::kDamaged);
  EXPECT_THAT(std::string(reader->error().message()), HasSubstr("it holds no lodestone.v1.LogRecord"));
}

TEST(RecordFile, AFileThatWasShortenedMeanwhileIsDamageAndNoSignal) {
  const std::string large(2 << 20, 'x');
  const auto reader = OpenFile(AllRecords() + RecordOf("large", large));
  RecordReader::Record record;
  for (int i = 0; i < 3; ++i) ASSERT_EQ(reader->Next(&record), Outcome::kRecord);
  ASSERT_EQ(truncate(Path().c_str(), 1 << 20), 0);
  EXPECT_EQ(reader->Next(&record), Outcome::kDamaged);
  EXPECT_THAT(std::string(reader->error().message()), HasSubstr("shortened"));
  EXPECT_TRUE(reader->unreadable());
}

}  // namespace
}  // namespace lodestone
