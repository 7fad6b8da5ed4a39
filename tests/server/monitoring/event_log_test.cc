#include "server/monitoring/event_log.h"

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/utf8.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// "3 joined ps 1: text".
std::vector<std::string> LinesOf(const EventLog& log, uint64_t after_id = 0) {
  std::vector<std::string> lines;
  const v1::EventsResponse told = log.Tell(after_id);
  for (const v1::Event& event : told.events()) {
    lines.push_back(absl::StrCat(event.id(), " ", event.kind(), " ", event.who(), ": ", event.text()));
  }
  return lines;
}

class EventLogTest : public ::testing::Test {
 protected:
  ManualTime time_;
  EventLog log_{&time_};
};

TEST_F(EventLogTest, TellsWhatCameAfterAnId) {
  EXPECT_THAT(LinesOf(log_), IsEmpty());
  log_.Add("joined", "ps 1", "at host:1");
  log_.Add("left", "ps 1", "shut down");
  log_.Add("joined", "worker 0", "host:4711");
  EXPECT_THAT(LinesOf(log_),
              ElementsAre("1 joined ps 1: at host:1", "2 left ps 1: shut down", "3 joined worker 0: host:4711"));
  EXPECT_THAT(LinesOf(log_, 2), ElementsAre("3 joined worker 0: host:4711"));
  EXPECT_THAT(LinesOf(log_, 3), IsEmpty());
  EXPECT_THAT(LinesOf(log_, 4711), IsEmpty()) << "an id of another log";
  EXPECT_EQ(log_.After(1, 1).size(), 1u);
  EXPECT_EQ(log_.After(1, 1)[0].id(), 2);
}

TEST_F(EventLogTest, KeepsTheNewestAndTheirIds) {
  for (size_t i = 1; i <= limits::kEventsMax + 5; ++i) log_.Add("joined", "ps 1", absl::StrCat(i));
  const v1::EventsResponse all = log_.Tell(0);
  ASSERT_EQ(all.events_size(), static_cast<int>(limits::kEventsMax));
  EXPECT_EQ(all.events(0).id(), 6);
  EXPECT_EQ(all.events(0).text(), "6");
  EXPECT_EQ(all.events(limits::kEventsMax - 1).id(), limits::kEventsMax + 5);
  EXPECT_THAT(LinesOf(log_, 3), SizeIs(limits::kEventsMax)) << "what was dropped is gone for who asks late";
  EXPECT_THAT(LinesOf(log_, limits::kEventsMax + 4), SizeIs(1));
}

TEST_F(EventLogTest, NoTwoEventsOfOneLogHaveTheSameTime) {
  const auto now_ms = static_cast<uint64_t>(time_.NowMs());
  for (int i = 0; i < 3; ++i) log_.Add("joined", "ps 1", "");
  time_.AdvanceMs(100);
  log_.Add("joined", "ps 1", "");
  const std::vector<v1::Event> events = log_.After(0, 10);
  ASSERT_EQ(events.size(), 4u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(events[i].time_ms(), now_ms + i);
  EXPECT_EQ(events[3].time_ms(), now_ms + 100);
}

TEST_F(EventLogTest, TakesEventsOfOthersWithTheirTimesAndGivesThemIdsOfItsOwn) {
  v1::Event event;
  event.set_id(99);
  event.set_time_ms(7);
  event.set_kind("checkpointed");
  event.set_who("ps 3");
  event.set_text("auto: 4 shards");
  log_.Take(event);
  log_.Take(event);
  EXPECT_THAT(LinesOf(log_), ElementsAre("1 checkpointed ps 3: auto: 4 shards", "2 checkpointed ps 3: auto: 4 shards"));
  EXPECT_EQ(log_.After(0, 1)[0].time_ms(), 7);
}

TEST_F(EventLogTest, TwoLogsAreToldApart) {
  const EventLog other(&time_);
  EXPECT_NE(log_.Tell(0).incarnation(), 0);
  EXPECT_NE(log_.Tell(0).incarnation(), other.Tell(0).incarnation());
  const uint64_t incarnation = log_.Tell(0).incarnation();
  log_.Add("joined", "ps 1", "");
  EXPECT_EQ(log_.Tell(0).incarnation(), incarnation);
}

TEST_F(EventLogTest, WhatIsTooLongIsCutAndWhatIsNoTextCanStillBeSent) {
  std::string umlauts = "x";
  for (int i = 0; i < 2000; ++i) umlauts += "\u00fc";
  log_.Add("refused", "ps 1", umlauts);
  log_.Add("refused", "ps 1", "a\xff\xc3 b");
  const std::vector<v1::Event> events = log_.After(0, 2);
  EXPECT_EQ(events[0].text(), umlauts.substr(0, 1023)) << "at a character's end";
  EXPECT_EQ(events[1].text(), "a?? b");
}

TEST_F(EventLogTest, EventsOfManyThreadsAreAllThereOnce) {
  constexpr int kThreads = 4, kEach = 200;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) log_.Add("joined", absl::StrCat("ps ", t), absl::StrCat(i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<std::string> seen;
  std::set<uint64_t> times;
  uint64_t id = 0;
  const v1::EventsResponse told = log_.Tell(0);
  for (const v1::Event& event : told.events()) {
    EXPECT_EQ(event.id(), ++id);
    seen.insert(absl::StrCat(event.who(), " ", event.text()));
    times.insert(event.time_ms());
  }
  EXPECT_THAT(seen, SizeIs(kThreads * kEach));
  EXPECT_THAT(times, SizeIs(kThreads * kEach));
}

class RefusedPushesTest : public EventLogTest {
 protected:
  void Refuse(Incarnation worker, const std::string& why = "NaN") {
    refused_.Note(worker, absl::InvalidArgumentError(why));
  }
  // Time goes on as it does in a ps, with a tick each second.
  void Pass(int seconds) {
    for (int i = 0; i < seconds; ++i) {
      time_.AdvanceMs(1000);
      refused_.Tick();
    }
  }
  RefusedPushes refused_{"ps 1", &time_, &log_};
};

TEST_F(RefusedPushesTest, TheFirstIsToldAtOnceAndTheOthersTogether) {
  Refuse(7, "a gradient is NaN");
  EXPECT_THAT(LinesOf(log_), ElementsAre("1 refused incarnation 7: ps 1 refused a push: a gradient is NaN"));
  for (int i = 0; i < 50; ++i) Refuse(7, "another");
  Refuse(7, "the last");
  Pass(9);
  EXPECT_THAT(LinesOf(log_, 1), IsEmpty());
  Pass(1);
  EXPECT_THAT(LinesOf(log_, 1), ElementsAre("2 refused incarnation 7: ps 1 refused 51 pushes, the last one: the last"));
  Pass(60);
  EXPECT_THAT(LinesOf(log_, 2), IsEmpty()) << "nothing more was refused";
}

TEST_F(RefusedPushesTest, AFloodIsOneEventEachTenSeconds) {
  for (int i = 0; i < 600; ++i) {
    Refuse(7);
    time_.AdvanceMs(100);
    if (i % 10 == 9) refused_.Tick();
  }
  EXPECT_THAT(LinesOf(log_), SizeIs(testing::Le(7)));
  uint64_t told = 0;
  Pass(20);
  for (const std::string& line : LinesOf(log_)) {
    const size_t at = line.find("refused ", line.find("ps 1")) + 8;
    told += line.compare(at, 2, "a ") == 0 ? 1 : std::stoul(line.substr(at));
  }
  EXPECT_EQ(told, 600) << "each is counted once";
}

TEST_F(RefusedPushesTest, OneThatIsRefusedMuchLaterIsToldAtOnceAgain) {
  Refuse(7);
  Pass(30);
  Refuse(7);
  EXPECT_THAT(LinesOf(log_), SizeIs(2));
}

TEST_F(RefusedPushesTest, WorkersAreToldApartAndTooManyCountAsOne) {
  for (Incarnation worker = 1; worker <= 1000; ++worker) Refuse(worker);
  EXPECT_THAT(LinesOf(log_), SizeIs(17));
  EXPECT_EQ(LinesOf(log_)[0], "1 refused incarnation 1: ps 1 refused a push: NaN");
  EXPECT_EQ(LinesOf(log_)[16], "17 refused other workers: ps 1 refused a push: NaN");
  Pass(10);
  EXPECT_THAT(LinesOf(log_, 17), ElementsAre("18 refused other workers: ps 1 refused 983 pushes, the last one: NaN"));
  Pass(10);
  Refuse(2000);
  EXPECT_THAT(LinesOf(log_, 18), ElementsAre("19 refused incarnation 2000: ps 1 refused a push: NaN"))
      << "the others are forgotten";
}

TEST_F(RefusedPushesTest, WhatPassesByItselfIsNotTold) {
  refused_.Note(7, absl::UnavailableError("this ps owns no shards yet"));
  Pass(20);
  EXPECT_THAT(LinesOf(log_), IsEmpty());
}

TEST(NameOfIncarnation, IsReadBack) {
  for (const Incarnation worker : {Incarnation{1}, Incarnation{1763700000000000}, ~Incarnation{0}}) {
    EXPECT_EQ(IncarnationNamed(NameOfIncarnation(worker)), worker);
  }
  for (const char* who :
       {"", "ps 1", "incarnation", "incarnation ", "incarnation x", "incarnation -1", "other workers"}) {
    EXPECT_EQ(IncarnationNamed(who), 0) << who;
  }
}

TEST(Utf8Prefix, EndsWhereACharacterDoes) {
  EXPECT_EQ(Utf8Prefix("abc", 5), "abc");
  EXPECT_EQ(Utf8Prefix("abc", 2), "ab");
  EXPECT_EQ(Utf8Prefix("a\u00fcb", 2), "a");
  EXPECT_EQ(Utf8Prefix("a\u00fcb", 3), "a\u00fc");
  EXPECT_EQ(Utf8Prefix("\U0001F600", 3), "");
}

}  // namespace
}  // namespace lodestone::server
