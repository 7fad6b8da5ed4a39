#include "tests/chaos/history.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lodestone::chaos {
namespace {

using testing::HasSubstr;

const Operation kAdd = {.client = 3, .row = 17, .shard = 4, .value = 5, .start_ns = 100, .end_ns = 200};
const Operation kRead = {.client = 4,
                         .call = Operation::Call::kRead,
                         .row = 17,
                         .shard = 4,
                         .value = 5,
                         .twin = 5,
                         .version = 9,
                         .start_ns = 150,
                         .end_ns = 250};
const Operation kUnanswered = {.client = 5, .row = 17, .shard = 4, .value = 2, .start_ns = 210};

TEST(History, SaysOfEachOperationClientCallArgumentsStartEndAndResult) {
  EXPECT_EQ(
      ToJson(kAdd),
      R"({"client":3,"call":"add","arguments":{"row":17,"shard":4,"value":5},"start":100,"end":200,"result":"ok"})");
  EXPECT_EQ(ToJson(kRead), R"({"client":4,"call":"read","arguments":{"row":17,"shard":4},"start":150,"end":250,)"
                           R"("result":{"value":5,"twin":5,"version":9}})");
  EXPECT_THAT(ToJson(kUnanswered), HasSubstr(R"("end":null,"result":null)"));
}

TEST(History, ComesBackFromItsLines) {
  const History history{.operations = {kAdd, kRead, kUnanswered},
                        .faults = {{"#1 kill ps 1", true, 120, 180}, {"#2 cut", false, 300}}};
  const auto back = ParseHistory(ToJsonLines(history));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->operations, history.operations);
  EXPECT_EQ(back->faults, history.faults);
}

TEST(History, NamesTheLineThatIsNone) {
  const std::string good = ToJson(kAdd) + "\n";
  EXPECT_THAT(ParseHistory(good + "{\"client\":1}\n").status().message(), HasSubstr("line 2"));
  EXPECT_THAT(ParseHistory(good + good + "no json").status().message(), HasSubstr("line 3"));
}

TEST(History, OfOneRowIsWhatKnossosReads) {
  Operation elsewhere = kAdd;
  elsewhere.row = 18;
  EXPECT_EQ(ToEdn({.operations = {kAdd, kRead, kUnanswered, elsewhere}}, 17),
            "{:process 3 :type :invoke :f :add :value 5 :time 100}\n"
            "{:process 4 :type :invoke :f :read :value nil :time 150}\n"
            "{:process 3 :type :ok :f :add :value 5 :time 200}\n"
            "{:process 5 :type :invoke :f :add :value 2 :time 210}\n"
            "{:process 4 :type :ok :f :read :value 5 :time 250}\n"
            "{:process 5 :type :info :f :add :value 2 :time 251}\n");
}

}  // namespace
}  // namespace lodestone::chaos
