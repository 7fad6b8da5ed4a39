#include "common/telemetry/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <latch>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/config.pb.h"

namespace lodestone {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;

v1::LogConfig Config(v1::LogConfig::Level level, bool json) {
  v1::LogConfig config;
  config.set_level(level);
  config.set_json(json);
  return config;
}

// What `action` writes to standard error.
template <typename Action>
std::string Written(Action action) {
  testing::internal::CaptureStderr();
  action();
  return testing::internal::GetCapturedStderr();
}

nlohmann::json ParseJson(const std::string& line) {
  nlohmann::json object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(object.is_object()) << line;
  return object;
}

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    if (end == std::string::npos) break;
    begin = end + 1;
  }
  return lines;
}

// The first test: nothing has called InitLog yet.
TEST(Log, WritesTextAtInfoBeforeInitLog) {
  const std::string text = Written([] {
    LODESTONE_LOG(INFO, "main", "starting pid={}", 7);
    LODESTONE_LOG(DEBUG, "main", "hidden");
  });
  EXPECT_THAT(text, MatchesRegex("[0-9-]{10}T[0-9:]{8}\\.[0-9]{3}Z INFO  main: starting pid=7\n"));
}

TEST(Log, NamesTheProcessOnEveryTextLine) {
  InitLog(Config(v1::LogConfig::INFO, false), "ps", "");
  EXPECT_THAT(Written([] { LODESTONE_LOG(WARN, "coordinator", "no servers yet"); }),
              HasSubstr(" WARN  ps=? coordinator: no servers yet\n"));
  SetLogId("0");
  const std::string address = "10.0.0.7:7000";
  EXPECT_THAT(Written([&] { LODESTONE_LOG(INFO, "coordinator", "joined server={} address={}", 1, address); }),
              HasSubstr(" INFO  ps=0 coordinator: joined server=1 address=10.0.0.7:7000\n"));
}

// All that can be read from `fd` now, which does not block.
std::string ReadAll(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t bytes = 0; (bytes = read(fd, buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<size_t>(bytes));
  }
  return text;
}

TEST(Log, CountsALongLineThatOnlyPartlyFindsRoomWhereStandardErrorDoesNotBlock) {
  InitLog(Config(v1::LogConfig::INFO, false), "ps", "0");
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  for (const int end : ends) ASSERT_EQ(fcntl(end, F_SETFL, O_NONBLOCK), 0);
  const int error = dup(STDERR_FILENO);
  ASSERT_EQ(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
  LODESTONE_LOG(INFO, "main", "long text={}", std::string(1 << 20, 'x'));
  ReadAll(ends[0]);
  LODESTONE_LOG(INFO, "main", "read again");
  const std::string text = ReadAll(ends[0]);
  dup2(error, STDERR_FILENO);
  for (const int fd : {error, ends[0], ends[1]}) close(fd);
  const std::vector<std::string> lines = Lines(text);
  ASSERT_EQ(lines.size(), 3u) << text;
  EXPECT_EQ(lines[0], "") << "the end of what was written of the long one";
  EXPECT_THAT(lines[1], HasSubstr(" WARN  ps=0 log: lines are missing here: nothing read standard error lines=1"));
  EXPECT_THAT(lines[2], HasSubstr("read again"));
}

TEST(Log, LeavesLinesOutWhereNothingReadsThemAndSaysSoLater) {
  InitLog(Config(v1::LogConfig::INFO, false), "ps", "0");
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
  ASSERT_EQ(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
  while (write(ends[1], "...............", 15) > 0) {
  }
  ASSERT_EQ(fcntl(ends[1], F_SETFL, 0), 0);
  const int error = dup(STDERR_FILENO);
  ASSERT_EQ(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
  for (int i = 0; i < 3; ++i) LODESTONE_LOG(INFO, "main", "nothing reads it");
  EXPECT_THAT(ReadAll(ends[0]), testing::Not(HasSubstr("nothing reads it")));
  LODESTONE_LOG(INFO, "main", "read again");
  LODESTONE_LOG(INFO, "main", "and again");
  const std::string text = ReadAll(ends[0]);
  dup2(error, STDERR_FILENO);
  for (const int fd : {error, ends[0], ends[1]}) close(fd);
  const std::vector<std::string> lines = Lines(text);
  ASSERT_EQ(lines.size(), 3u) << text;
  EXPECT_THAT(lines[0], HasSubstr(" WARN  ps=0 log: lines are missing here: nothing read standard error lines=3"));
  EXPECT_THAT(lines[1], HasSubstr("read again"));
  EXPECT_THAT(lines[2], HasSubstr("and again"));
}

TEST(Log, WritesOnlyLevelsThatAreSevereEnough) {
  InitLog(Config(v1::LogConfig::WARN, false), "ps", "0");
  int evaluated = 0;
  const std::string text = Written([&] {
    LODESTONE_LOG(INFO, "x", "no n={}", ++evaluated);
    LODESTONE_LOG(WARN, "x", "one n={}", ++evaluated);
    LODESTONE_LOG(ERROR, "x", "two n={}", ++evaluated);
  });
  EXPECT_EQ(evaluated, 2);
  EXPECT_EQ(Lines(text).size(), 2u) << text;
  InitLog(Config(v1::LogConfig::TRACE, false), "ps", "0");
  EXPECT_TRUE(LogEnabled(LogLevel::TRACE));
}

TEST(Log, QuotesTextValuesThatHoldSpacesOrNothing) {
  InitLog(Config(v1::LogConfig::INFO, false), "ps", "0");
  EXPECT_THAT(Written([] { LODESTONE_LOG(INFO, "x", "m a={} b={} c={:.2f}", "two words", "", 1.0); }),
              HasSubstr(": m a=\"two words\" b=\"\" c=1.00\n"));
  EXPECT_THAT(Written([] { LODESTONE_LOG(INFO, "x", "m a={}", "say \"hi\"\n\\"); }),
              HasSubstr(": m a=\"say \\\"hi\\\"\\n\\\\\"\n"));
}

TEST(Log, KeepsForeignTextFromStartingALineOrAField) {
  InitLog(Config(v1::LogConfig::INFO, false), "ps", "0");
  const std::string text = Written([] { LODESTONE_LOG(INFO, "x", "cannot read {} peer={}", "f\nFAKE", "a key=1"); });
  EXPECT_EQ(Lines(text).size(), 1u);
  EXPECT_THAT(text, HasSubstr("cannot read f\\nFAKE peer=\"a key=1\"\n"));
}

TEST(Log, WritesJsonWithEveryPairAsAField) {
  InitLog(Config(v1::LogConfig::INFO, true), "worker", "3");
  const std::string line = Written([] {
    LODESTONE_LOG(INFO, "trainer", "step done step={} loss={:.3f} device={} rate={:.1f}/s ok={}", 12, 0.5, "cpu", 2.0,
                  true);
  });
  const nlohmann::json fields = ParseJson(line);
  EXPECT_EQ(fields.at("level"), "INFO");
  EXPECT_EQ(fields.at("role"), "worker");
  EXPECT_EQ(fields.at("id"), "3");
  EXPECT_EQ(fields.at("component"), "trainer");
  EXPECT_EQ(fields.at("msg"), "step done");
  EXPECT_EQ(fields.at("step"), 12);
  EXPECT_EQ(fields.at("loss"), 0.5);
  EXPECT_EQ(fields.at("device"), "cpu");
  EXPECT_EQ(fields.at("rate"), "2.0/s");
  EXPECT_EQ(fields.at("ok"), true);
  EXPECT_EQ(fields.at("ts").get<std::string>().size(), 24u);
}

TEST(Log, WritesValidJsonWhateverTheValuesHold) {
  InitLog(Config(v1::LogConfig::INFO, true), "ps", "0");
  const std::string nasty = std::string("\"}\\\n\t\0\x01\x7f\xff\xc3\xa9\xed\xa0\x80", 14);
  const nlohmann::json fields = ParseJson(Written([&] {
    LODESTONE_LOG(INFO, "x", "m {} text={} number={} nan={} id={}", nasty, nasty, "12",
                  std::numeric_limits<double>::quiet_NaN(), 4);
  }));
  EXPECT_EQ(fields.at("text"),
            std::string("\"}\\\n\t\0\x01\x7f\xef\xbf\xbd\xc3\xa9\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", 22));
  EXPECT_EQ(fields.at("number"), "12");  // A string stays one, though it looks like a number.
  EXPECT_EQ(fields.at("nan"), "nan");
  EXPECT_EQ(fields.at("id"), "0");  // The process's own.
  EXPECT_EQ(fields.at("id_"), 4);
}

TEST(Log, TakesFormatSpecsAndEscapedBracesApart) {
  InitLog(Config(v1::LogConfig::INFO, false), "ps", "0");
  EXPECT_THAT(Written([] { LODESTONE_LOG(INFO, "x", "{{}} a={: >4} b={:{}d} c={{{}}}", 1, 2, 3, 4); }),
              HasSubstr(": {} a=\"   1\" b=\"  2\" c={4}\n"));
}

TEST(Log, NeverMixesLinesOfSeveralThreads) {
  InitLog(Config(v1::LogConfig::INFO, false), "ps", "0");
  constexpr int kThreads = 4;
  constexpr int kLines = 200;
  const std::string text = Written([] {
    std::latch start(kThreads);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&start, t] {
        start.arrive_and_wait();
        for (int i = 0; i < kLines; ++i) {
          LODESTONE_LOG(INFO, "thread", "line thread={} i={} end=1", t, i);
          SetLogId(std::to_string(t));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  const std::vector<std::string> lines = Lines(text);
  EXPECT_EQ(lines.size(), static_cast<size_t>(kThreads * kLines));
  for (const std::string& line : lines) {
    EXPECT_THAT(line, MatchesRegex(".* INFO  ps=[0-3] thread: line thread=[0-3] i=[0-9]+ end=1"));
  }
}

}  // namespace
}  // namespace lodestone
