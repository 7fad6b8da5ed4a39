// Logs in folders of a test's own, and what is read of them.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/wal/log_reader.h"

namespace lodestone::server {

inline std::string LogFolder() {
  std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/log_XXXXXX";
  EXPECT_NE(mkdtemp(path.data()), nullptr);
  return path;
}

inline v1::SegmentHeader LogHeader(uint64_t generation = 1, uint32_t log = 0) {
  v1::SegmentHeader header;
  header.set_cluster("test");
  header.set_shards(8);
  header.set_seed(5);
  header.set_server(1);
  header.set_lineage(1);
  header.set_record_lineages(true);
  header.set_generation(generation);
  header.set_log(log);
  return header;
}

// A record that carries its number, as long as all others.
inline v1::LogRecord NumberedRecord(uint64_t number) {
  v1::LogRecord record;
  record.set_session_opened(number);
  return record;
}

// What is read of a log.
struct LogContent {
  std::vector<uint64_t> numbers;  // Of the records.
  std::vector<std::string> payloads;
  std::vector<LogReader::Cut> cuts;
  absl::Status status;  // Why no more is.
};

inline LogContent ReadLog(const LogReader::Options& options, size_t index = 0) {
  LogContent content;
  const auto logs = ListLogs(options.dir);
  EXPECT_TRUE(logs.ok()) << logs.status();
  EXPECT_LT(index, logs->size());
  auto reader = LogReader::Open(options, (*logs)[index]);
  content.status = reader.status();
  if (!reader.ok()) return content;
  while (true) {
    v1::LogRecord record;
    ByteView payload;
    const auto next = (*reader)->Next(&record, &payload);
    content.status = next.status();
    if (!next.ok() || !*next) break;
    content.numbers.push_back(record.session_opened());
    content.payloads.emplace_back(payload.size(), '\0');
    payload.CopyTo(content.payloads.back().data());
  }
  content.cuts = (*reader)->cuts();
  return content;
}
inline LogContent ReadLog(const std::string& dir, bool cut_damaged = false,
                          const v1::SegmentHeader& expected = LogHeader(), size_t index = 0) {
  return ReadLog({.dir = dir, .expected = expected, .cut_damaged = cut_damaged}, index);
}

// first, first + 1, … last - 1.
inline std::vector<uint64_t> Numbers(uint64_t first, uint64_t last) {
  std::vector<uint64_t> numbers;
  for (uint64_t number = first; number < last; ++number) numbers.push_back(number);
  return numbers;
}

inline std::string FileContent(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// Replaces the file, if there is one.
inline void WriteContent(const std::string& path, const std::string& content) {
  std::remove(path.c_str());
  std::ofstream(path, std::ios::binary) << content;
}

}  // namespace lodestone::server
