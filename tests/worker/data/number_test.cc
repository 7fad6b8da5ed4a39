#include "worker/data/number.h"

#include <cstdlib>
#include <string>

#include "common/base/random.h"
#include "gtest/gtest.h"

namespace lodestone::worker {
namespace {

TEST(Number, ParsesWhatStrtodParses) {
  for (const char* text : {"0",
                           "-0",
                           "1",
                           "+1",
                           "-1",
                           "007",
                           "1.",
                           ".5",
                           "-.5",
                           "+.25",
                           "3.14159",
                           "1e3",
                           "1E-3",
                           "2.5e+2",
                           "123456789012345",
                           "1234567890123456",
                           "12345678901234567890123",
                           "0.1",
                           "0.000000000000001",
                           "0.1234567890123456789",
                           "1e-400",
                           "-1e-400",
                           "9007199254740993",
                           "3.4028234e38"}) {
    double value = -7;
    ASSERT_TRUE(ParseNumber(text, &value)) << text;
    EXPECT_EQ(value, std::strtod(text, nullptr)) << text;
  }
}

TEST(Number, RoundsRandomDecimalsAsStrtodDoes) {
  for (uint64_t n = 0; n < 20000; ++n) {
    const std::string digits = std::to_string(RandomBits(1, n) >> (RandomBits(2, n) % 60));
    const size_t point = RandomBits(3, n) % (digits.size() + 1);
    std::string text;
    if (n % 2 == 0) text.push_back('-');
    text.append(digits, 0, point);
    if (n % 3 != 0) text.push_back('.');
    text.append(digits, point);
    if (n % 5 == 0) text.append("e").append(std::to_string(static_cast<int>(RandomBits(4, n) % 30) - 20));
    double value = 0;
    const char* const end = text.data() + text.size();
    ASSERT_EQ(ParseNumberPrefix(text.data(), end, &value), end) << text;
    ASSERT_EQ(value, std::strtod(text.c_str(), nullptr)) << text;
  }
}

TEST(Number, RefusesWhatIsNoFiniteFloat) {
  for (const char* text : {"",   "-",    "+",     ".",   "+-1", "--1", "1x",   "x",    "1 ",    " 1",    "1e",
                           "e5", "0x10", "1.2.3", "1,5", "nan", "inf", "-inf", "1e39", "1e400", "-1e400"}) {
    double value;
    EXPECT_FALSE(ParseNumber(text, &value)) << text;
  }
}

TEST(Number, LeavesWhatFollowsThePrefix) {
  const std::string text = "12.5e:x";
  double value = 0;
  const char* const end = ParseNumberPrefix(text.data(), text.data() + text.size(), &value);
  EXPECT_EQ(value, 12.5);
  EXPECT_EQ(end - text.data(), 4);
}

}  // namespace
}  // namespace lodestone::worker
