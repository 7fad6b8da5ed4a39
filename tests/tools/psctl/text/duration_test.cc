#include "tools/psctl/text/duration.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::psctl {
namespace {

TEST(ParseMillis, TakesSecondsAndUnits) {
  for (const auto& [text, ms] : {std::pair("5", 5000),
                                 {"0.5", 500},
                                 {"250ms", 250},
                                 {"5s", 5000},
                                 {"1m30s", 90'000},
                                 {"5min", 300'000},
                                 {"1h", 3'600'000},
                                 {"24h", 86'400'000},
                                 {"1ms", 1}}) {
    const auto parsed = ParseMillis(text);
    ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.status();
    EXPECT_EQ(*parsed, ms) << text;
  }
}

TEST(ParseMillis, NamesWhatIsNoTime) {
  for (const char* text :
       {"", "soon", "5 apples", "-1", "0", "25h", "nan", "inf", "1e99", "0.1ms", "5mins", "5minutes"}) {
    EXPECT_THAT(std::string(ParseMillis(text).status().message()), testing::StartsWith(std::string("`") + text + "`"));
  }
}

}  // namespace
}  // namespace lodestone::psctl
