#include "tools/psctl/verbs/top_frame.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/psctl/text/table.h"

namespace lodestone::psctl {
namespace {

using testing::Contains;
using testing::Each;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

class TopFrameTest : public testing::Test {
 protected:
  TopFrameTest() {
    view_.time_ms = 1'700'000'000'000;
    v1::ClusterStatus& cluster = view_.report.cluster;
    cluster.set_name("demo");
    cluster.set_servers_expected(2);
    for (uint32_t i = 0; i < 2; ++i) {
      v1::MemberStatus* const server = cluster.add_servers();
      server->set_index(i);
      server->set_peer(absl::StrCat("host:", 7000 + i));
      server->set_alive(true);
      ServerReport& report = view_.report.servers.emplace_back();
      report.index = i;
      report.status = v1::StatusResponse();
    }
    AddWorkers(2);
    v1::TableStatus* const table = Status(0)->add_tables();
    table->set_name("embedding");
    table->set_rows(1234);
    v1::WaitStatus* const wait = Status(1)->add_waits();
    wait->set_who("ps 1");
    wait->set_what("its lease to be renewed");
    wait->set_seconds(2);
    AddEvents(3);
  }
  v1::StatusResponse* Status(size_t server) { return &*view_.report.servers[server].status; }
  void AddWorkers(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      v1::MemberStatus* const worker = view_.report.cluster.add_workers();
      worker->set_index(view_.report.cluster.workers_size() - 1);
      worker->set_peer("host:4711");
      worker->set_alive(true);
      worker->set_samples_per_second(500);
      worker->mutable_progress()->set_phase(v1::PHASE_TRAINING);
      worker->mutable_progress()->set_clock(1);
      worker->mutable_progress()->set_samples(1000);
      worker->mutable_progress()->set_samples_total(4000);
      worker->mutable_progress()->set_loss(0.5f);
    }
  }
  void AddEvents(int count) {
    for (int i = 0; i < count; ++i) {
      v1::Event& event = view_.events.emplace_back();
      event.set_id(view_.events.size());
      event.set_kind("joined");
      event.set_text(absl::StrCat("event ", view_.events.size()));
    }
  }
  std::vector<std::string> Frame(size_t columns = SIZE_MAX, size_t lines = SIZE_MAX) const {
    return TopFrame(view_, {columns, lines});
  }
  std::string Text(size_t columns = SIZE_MAX, size_t lines = SIZE_MAX) const {
    return absl::StrJoin(Frame(columns, lines), "\n");
  }

  TopView view_;
};

TEST_F(TopFrameTest, ShowsEverySectionOfACluster) {
  const std::vector<std::string> lines = Frame();
  EXPECT_EQ(lines[0], "cluster demo  2 of 2 servers, 2 workers  22:13:20Z");
  EXPECT_EQ(lines[1], "training 25 %  2,000 of 8,000 samples  1,000/s  loss 0.5000  delay 0.0  0:06 left");
  for (const char* title : {"servers", "workers", "tables", "waits", "events"}) EXPECT_THAT(lines, Contains(title));
  for (const char* text : {"host:7001", "host:4711", "embedding", "1,234", "its lease to be renewed", "event 3"}) {
    EXPECT_THAT(Text(), HasSubstr(text));
  }
}

TEST_F(TopFrameTest, LeavesOutWhatIsEmpty) {
  view_.report.cluster.clear_workers();
  Status(1)->clear_waits();
  view_.events.clear();
  for (const char* title : {"workers\n", "waits\n", "events"}) EXPECT_THAT(Text(), Not(HasSubstr(title)));
}

TEST_F(TopFrameTest, FitsAnyTerminal) {
  AddWorkers(40);
  AddEvents(100);
  view_.trouble = "as it was then: no ps answers";
  for (size_t columns = 1; columns < 200; columns += 13) {
    for (size_t lines = 1; lines < 120; lines += 7) {
      const std::vector<std::string> frame = TopFrame(view_, {columns, lines}, Painter(true));
      EXPECT_LE(frame.size(), lines);
      for (std::string line : frame) {
        while (line.find('\x1b') != std::string::npos) {
          const size_t at = line.find('\x1b');
          line.erase(at, line.find('m', at) - at + 1);
        }
        EXPECT_LE(ColumnsOf(line), columns);
      }
    }
  }
}

TEST_F(TopFrameTest, FillsTheTerminalBeforeItLeavesAnythingOut) {
  AddWorkers(40);
  AddEvents(100);
  for (const size_t lines : {40u, 60u, 80u}) EXPECT_THAT(Frame(200, lines), SizeIs(lines));
}

TEST_F(TopFrameTest, CountsWhatItLeavesOutAndKeepsTheNewestEvents) {
  AddWorkers(40);
  AddEvents(100);
  const std::vector<std::string> lines = Frame(200, 40);
  EXPECT_THAT(Text(200, 40), testing::ContainsRegex("  and [0-9]+ more"));
  size_t shown = 0, left_out = 0;
  for (const std::string& line : lines) {
    if (line.find("host:4711") != std::string::npos) ++shown;
    if (const size_t at = line.find("  and "); at != std::string::npos) left_out = std::stoul(line.substr(at + 6));
  }
  EXPECT_EQ(shown + left_out, 42u);
  EXPECT_THAT(lines.back(), HasSubstr("event 103"));
  EXPECT_THAT(Text(200, 40), Not(HasSubstr("event 1\n")));
}

TEST_F(TopFrameTest, WithoutAnEndOfLinesEventsAreBounded) {
  AddEvents(100);
  EXPECT_THAT(Text(), Not(HasSubstr("event 93\n")));
  EXPECT_THAT(Text(), HasSubstr("event 94\n"));
  EXPECT_THAT(Frame().back(), HasSubstr("event 103"));
}

TEST_F(TopFrameTest, SaysWhatIsWrongAboveEverythingElse) {
  view_.trouble = "as it was then: no ps answers at host:7000";
  view_.report.servers[1].status = absl::UnavailableError("no ps answers at host:7001");
  Status(0)->mutable_server()->set_security_warning("open to everybody");
  const std::vector<std::string> lines = Frame(200, 20);
  EXPECT_EQ(lines[2], view_.trouble);
  EXPECT_EQ(lines[3], "WARNING: ps 0: open to everybody");
  EXPECT_EQ(lines[4], "ps 1: no ps answers at host:7001");
}

TEST_F(TopFrameTest, WithoutACoordinatorItSaysSoAndShowsWhatThereIs) {
  view_.report.cluster.Clear();
  view_.report.remark = "only the ps at host:7001 could be asked: it knows no coordinator yet";
  const std::vector<std::string> lines = Frame();
  EXPECT_THAT(lines[0], StartsWith("a ps without its coordinator"));
  EXPECT_EQ(lines[1], view_.report.remark);
  EXPECT_THAT(Text(), HasSubstr("embedding"));
}

TEST_F(TopFrameTest, HasNoEscapesWithoutColours) {
  EXPECT_THAT(Frame(), Each(Not(HasSubstr("\x1b"))));
  EXPECT_THAT(TopFrame(view_, FrameSize(), Painter(true)), Contains(HasSubstr("\x1b[1m")));
}

}  // namespace
}  // namespace lodestone::psctl
