#include "tools/psctl/verbs/listing.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/tools/psctl/client/fake_admin.h"
#include "tests/tools/psctl/verbs/psctl_call.h"

namespace lodestone::psctl {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// Two servers that hold a table and know a worker.
class ListingTest : public TwoServersTest {
 protected:
  ListingTest() {
    uint64_t rows = 100;
    for (FakeAdmin* const admin : {&zero_, &one_}) {
      v1::TableStatus* const table = admin->status.add_tables();
      table->set_name("embedding");
      table->set_shape("embedding dim 8");
      table->set_optimizer("adagrad");
      table->set_rows(rows);
      table->set_bytes(1024 * rows);
      table->set_updates(10);
      table->set_version_max(rows);
      v1::SessionStatus* const session = admin->status.add_sessions();
      session->set_worker_incarnation(77);
      session->set_pushes(rows);
      session->set_refused(1);
      rows += 1000;
    }
    one_.status.add_tables()->set_name("bias");
    v1::MemberStatus* const worker = zero_.cluster.add_workers();
    worker->set_index(0);
    worker->set_incarnation(77);
    worker->set_peer("host:4711");
    worker->set_alive(true);
    worker->mutable_progress()->set_phase(v1::PHASE_TRAINING);
    worker->mutable_progress()->set_clock(42);
    worker->mutable_progress()->set_waiting_for("a pull from ps 1");
    v1::WaitStatus* const wait = one_.status.add_waits();
    wait->set_who("ps 1");
    wait->set_what("checkpoint auto to be written");
    wait->set_seconds(3.5);
  }
  PsctlCall Call(const std::string& verb, bool json = false) const {
    std::vector<std::string> arguments = {verb, "--address", one_.address, "--timeout", "60s"};
    if (json) arguments.push_back("--json");
    return PsctlCall(arguments);
  }
  nlohmann::json Json(const std::string& verb) const {
    const PsctlCall call = Call(verb, true);
    EXPECT_EQ(call.exit_code, 0) << call.errors;
    return nlohmann::json::parse(call.output);
  }
};

TEST_F(ListingTest, TablesAreSummedUpOverAllServers) {
  const PsctlCall call = Call("tables");
  EXPECT_EQ(call.exit_code, 0) << call.errors;
  EXPECT_THAT(call.errors, IsEmpty());
  // The first columns: another figure is a column behind them.
  EXPECT_THAT(call.output,
              HasSubstr("  table      shape            optimizer  blocks   rows    bytes  updates  version  "));
  EXPECT_THAT(call.output,
              HasSubstr("  bias                                        0      0      0 B        0        0  "));
  EXPECT_THAT(call.output,
              HasSubstr("  embedding  embedding dim 8  adagrad         0  1,200  1.2 MiB       20    1,100  "));
  zero_.cluster.set_replicas(2);
  EXPECT_THAT(Call("tables").output, HasSubstr("counted with the copies of followers"));
}

TEST_F(ListingTest, TablesAsJson) {
  const nlohmann::json json = Json("tables");
  EXPECT_EQ(json["servers"], nlohmann::json({0, 1}));
  ASSERT_EQ(json["tables"].size(), 2u);
  EXPECT_EQ(json["tables"][1]["name"], "embedding");
  EXPECT_EQ(json["tables"][1]["rows"], 1200);
  EXPECT_EQ(json["tables"][1]["version_max"], 1100);
}

TEST_F(ListingTest, WorkersHaveWhatAllServersSayOfTheirPushes) {
  const PsctlCall call = Call("workers");
  EXPECT_EQ(call.exit_code, 0) << call.errors;
  EXPECT_THAT(call.output, HasSubstr("pushes  refused  waits for"));
  EXPECT_THAT(call.output, HasSubstr("0  host:4711  alive         0.0 s  training     42"));
  EXPECT_THAT(call.output, HasSubstr("1,200        2  a pull from ps 1\n"));
  const nlohmann::json json = Json("workers");
  ASSERT_EQ(json["workers"].size(), 1u);
  EXPECT_EQ(json["workers"][0]["progress"]["clock"], 42);
  EXPECT_EQ(json["workers"][0]["pushes"], 1200);
  EXPECT_EQ(json["workers"][0]["pushes_refused"], 2);
  EXPECT_FALSE(json["workers"][0].contains("shards_owned"));
}

TEST_F(ListingTest, WaitsOfAllServersAndWorkersAreThereTheLongestFirst) {
  v1::WaitStatus* const wait = zero_.status.add_waits();
  wait->set_who("worker 3");
  wait->set_what("clock 7");
  wait->set_seconds(60);
  const PsctlCall call = Call("waits");
  EXPECT_EQ(call.exit_code, 0) << call.errors;
  EXPECT_EQ(call.output,
            "  where     who       waits for                      since\n"
            "  ps 0      worker 3  clock 7                        60.0 s\n"
            "  ps 1      ps 1      checkpoint auto to be written  3.5 s\n"
            "  worker 0  worker 0  a pull from ps 1               over 1 s\n");
  const nlohmann::json json = Json("waits");
  ASSERT_EQ(json["waits"].size(), 3u);
  EXPECT_EQ(json["waits"][0]["where"], "ps 0");
  EXPECT_EQ(json["waits"][0]["seconds"], 60);
  EXPECT_TRUE(json["waits"][2]["seconds"].is_null());
}

TEST_F(ListingTest, AServerThatDoesNotAnswerIsNamedAndTheRestIsShown) {
  zero_.status_answer = grpc::Status::OK;
  one_.status_answer = grpc::Status(grpc::StatusCode::INTERNAL, "no words");
  for (const char* verb : {"tables", "workers", "waits"}) {
    const PsctlCall call({verb, "--address", zero_.address, "--timeout", "60s"});
    EXPECT_EQ(call.exit_code, 1);
    EXPECT_EQ(call.errors, std::string("psctl ") + verb + ": ps 1: the ps at " + one_.address + ": no words\n");
    EXPECT_THAT(call.output, testing::Not(IsEmpty()));
  }
}

TEST_F(ListingTest, SaysWhereNothingListensAndWhatToCheck) {
  const std::string nowhere = Nowhere();
  for (const char* verb : {"tables", "workers", "waits", "why", "events", "status", "top", "health", "checkpoint"}) {
    const PsctlCall call({verb, "--address", nowhere, "--timeout", "60s"});
    EXPECT_EQ(call.exit_code, 3) << verb;
    EXPECT_THAT(call.errors, HasSubstr(std::string("psctl ") + verb + ": no ps answers at " + nowhere +
                                       ": Connection refused. Does one run there?"));
    EXPECT_THAT(call.output, IsEmpty());
  }
}

TEST_F(ListingTest, SaysThatThereIsNothing) {
  FakeAdmin lone(0);
  lone.cluster.set_servers_expected(1);
  v1::MemberStatus* const member = lone.cluster.add_servers();
  member->set_peer(lone.address);
  member->set_alive(true);
  for (const auto& [verb, text] :
       {std::pair("tables", "no tables yet\n"), {"workers", "no workers yet\n"}, {"waits", "nothing waits\n"}}) {
    const PsctlCall call({verb, "--address", lone.address, "--timeout", "60s"});
    EXPECT_EQ(call.exit_code, 0) << call.errors;
    EXPECT_EQ(call.output, text);
  }
}

}  // namespace
}  // namespace lodestone::psctl
