#include "tools/psctl/text/message_json.h"

#include <limits>

#include "gtest/gtest.h"
#include "proto/admin.pb.h"

namespace lodestone::psctl {
namespace {

TEST(JsonOf, WritesCountsAsNumbersAndNamesAsTexts) {
  v1::StatusResponse status;
  status.mutable_server()->set_pushes(18'446'744'073'709'551'615u);
  status.mutable_server()->set_incarnation(18'446'744'073'709'551'614u);
  status.mutable_server()->set_shards_owned(3);
  status.add_tables()->set_rows(7);
  status.mutable_cluster()->add_servers()->mutable_server()->set_rows(9);
  const nlohmann::ordered_json json = JsonOf(status);
  EXPECT_EQ(json["server"]["pushes"], 18'446'744'073'709'551'615u);
  EXPECT_EQ(json["server"]["incarnation"], "18446744073709551614");
  EXPECT_EQ(json["server"]["shards_owned"], 3);
  EXPECT_EQ(json["server"]["pulls"], 0) << "what is unset is there too";
  EXPECT_EQ(json["tables"][0]["rows"], 7);
  EXPECT_EQ(json["cluster"]["servers"][0]["server"]["rows"], 9);
  EXPECT_TRUE(json["sessions"].empty());
}

TEST(JsonOf, WritesNullForWhatIsNoNumber) {
  v1::StatusResponse status;
  v1::WorkerProgress* const worker = status.mutable_cluster()->add_workers()->mutable_progress();
  worker->set_loss(std::numeric_limits<float>::quiet_NaN());
  worker->set_staleness_pushes(std::numeric_limits<float>::infinity());
  worker->set_waiting_for("NaN");
  const nlohmann::ordered_json progress = JsonOf(status)["cluster"]["workers"][0]["progress"];
  EXPECT_TRUE(progress["loss"].is_null()) << progress;
  EXPECT_TRUE(progress["staleness_pushes"].is_null()) << progress;
  EXPECT_EQ(progress["waiting_for"], "NaN");
}

TEST(IndentedJson, ReplacesWhatIsNoText) {
  EXPECT_EQ(IndentedJson({{"a", "x\xff"}}), "{\n  \"a\": \"x\xef\xbf\xbd\"\n}\n");
  EXPECT_EQ(JsonLine({{"a", 1}, {"b", nlohmann::ordered_json::array()}}), "{\"a\":1,\"b\":[]}\n");
}

}  // namespace
}  // namespace lodestone::psctl
