#include "common/config/yaml_scalar.h"

#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/config/suggest.h"
#include "gtest/gtest.h"

namespace lodestone {
namespace {

// "17", "-3", or the name of the error's code.
std::string Whole(const std::string& text, Units units = Units::kNone) {
  const absl::StatusOr<Integer> integer = ParseInteger(text, units);
  if (!integer.ok()) return absl::StatusCodeToString(integer.status().code());
  std::string shown;
  if (integer->negative) shown.push_back('-');
  return shown.append(std::to_string(integer->magnitude));
}

TEST(ParseInteger, TakesWhatIsWholeHoweverItIsWritten) {
  EXPECT_EQ(Whole("0"), "0");
  EXPECT_EQ(Whole("-0"), "0");
  EXPECT_EQ(Whole("+7"), "7");
  EXPECT_EQ(Whole("007"), "7");
  EXPECT_EQ(Whole("-12"), "-12");
  EXPECT_EQ(Whole("1_000_000"), "1000000");
  EXPECT_EQ(Whole("1e6"), "1000000");
  EXPECT_EQ(Whole("2.50e2"), "250");
  EXPECT_EQ(Whole("2500E-2"), "25");
  EXPECT_EQ(Whole("3.0"), "3");
  EXPECT_EQ(Whole("0e999999999"), "0");
  EXPECT_EQ(Whole("0xFf"), "255");
  EXPECT_EQ(Whole("18446744073709551615"), "18446744073709551615");
  EXPECT_EQ(Whole("1.8446744073709551615e19"), "18446744073709551615");
  EXPECT_EQ(Whole("0xffffffffffffffff"), "18446744073709551615");
}

TEST(ParseInteger, RefusesWhatIsNotWhole) {
  for (const std::string text :
       {"",   "-",    "+",  "x",   "1.5", "15e-1", "1e-400", "1e",  "e5",   "1e1e1", "1.2.3", ".",           "_1",
        "1_", "1__0", "0x", "0xg", "1 ",  " 1",    "1,000",  "--1", "64Ki", "inf",   "nan",   "1e5000000000"}) {
    EXPECT_EQ(Whole(text), "INVALID_ARGUMENT") << text;
  }
}

TEST(ParseInteger, TellsWhatIsTooLarge) {
  for (const std::string text : {"18446744073709551616", "1e20", "1e999999999", "0x10000000000000000",
                                 "99999999999999999999999999999999999999999999"}) {
    EXPECT_EQ(Whole(text), "OUT_OF_RANGE") << text;
  }
  EXPECT_EQ(Whole("16777216TiB", Units::kBytes), "OUT_OF_RANGE");
}

TEST(ParseInteger, TakesTimesWithUnits) {
  EXPECT_EQ(Whole("250", Units::kMilliseconds), "250");
  EXPECT_EQ(Whole("250ms", Units::kMilliseconds), "250");
  EXPECT_EQ(Whole("10s", Units::kMilliseconds), "10000");
  EXPECT_EQ(Whole("1.5 s", Units::kMilliseconds), "1500");
  EXPECT_EQ(Whole("5min", Units::kMilliseconds), "300000");
  EXPECT_EQ(Whole("5m", Units::kMilliseconds), "300000");
  EXPECT_EQ(Whole("2h", Units::kMilliseconds), "7200000");
  EXPECT_EQ(Whole("1d", Units::kMilliseconds), "86400000");
  EXPECT_EQ(Whole("0x1d", Units::kMilliseconds), "29");
  for (const char* text : {"s", "10mins", "10sec", "0.3ms", "1KiB", "10 s s"}) {
    EXPECT_EQ(Whole(text, Units::kMilliseconds), "INVALID_ARGUMENT") << text;
  }
  EXPECT_EQ(Whole("10s"), "INVALID_ARGUMENT");
}

TEST(ParseInteger, TakesSizesWithUnits) {
  EXPECT_EQ(Whole("4096", Units::kBytes), "4096");
  EXPECT_EQ(Whole("64KiB", Units::kBytes), "65536");
  EXPECT_EQ(Whole("64 Ki", Units::kBytes), "65536");
  EXPECT_EQ(Whole("1.5GiB", Units::kBytes), "1610612736");
  EXPECT_EQ(Whole("2Mi", Units::kBytes), "2097152");
  EXPECT_EQ(Whole("1TiB", Units::kBytes), "1099511627776");
  EXPECT_EQ(Whole("10MB", Units::kBytes), "10000000");
  EXPECT_EQ(Whole("1kB", Units::kBytes), "1000");
  EXPECT_EQ(Whole("0.3KiB", Units::kBytes), "INVALID_ARGUMENT");  // 307.2 bytes.
  EXPECT_EQ(Whole("KiB", Units::kBytes), "INVALID_ARGUMENT");
  EXPECT_EQ(Whole("64K", Units::kBytes), "INVALID_ARGUMENT");  // 1000 or 1024?
}

TEST(ParseNumber, TakesDecimals) {
  EXPECT_EQ(ParseNumber("1").value(), 1);
  EXPECT_EQ(ParseNumber("-.5").value(), -0.5);
  EXPECT_EQ(ParseNumber("5.").value(), 5);
  EXPECT_EQ(ParseNumber("1_000.25").value(), 1000.25);
  EXPECT_EQ(ParseNumber("1e-3").value(), 1e-3);
  EXPECT_EQ(ParseNumber("1e-999").value(), 0);
}

TEST(ParseNumber, RefusesWhatIsNoFiniteDecimal) {
  for (const std::string text :
       {"", ".", "x", "1x", "0x10", "inf", "-inf", ".inf", "nan", ".NaN", "infinity", "1e", "1 "}) {
    EXPECT_EQ(ParseNumber(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_EQ(ParseNumber("1e309").status().code(), absl::StatusCode::kOutOfRange);
}

TEST(ParseBool, TakesTheWordsOfYaml) {
  for (const std::string text : {"true", "True", "YES", "on"}) EXPECT_EQ(ParseBool(text), true) << text;
  for (const std::string text : {"false", "FALSE", "no", "Off"}) EXPECT_EQ(ParseBool(text), false) << text;
  for (const std::string text : {"", "1", "0", "y", "t", "truee"}) EXPECT_FALSE(ParseBool(text).has_value()) << text;
}

TEST(Quote, CutsLongTextsBetweenCharacters) {
  EXPECT_EQ(Quote("a\nb"), "`a b`");
  const auto quoted = [](const std::string& text) { return absl::StrCat("`", text, "`"); };
  EXPECT_EQ(Quote(std::string(80, 'x')), quoted(std::string(80, 'x')));
  EXPECT_EQ(Quote(std::string(81, 'x')), quoted(std::string(80, 'x') + "..."));
  EXPECT_EQ(Quote(std::string(79, 'x') + "\xc3\xa9y"), quoted(std::string(79, 'x') + "\xc3\xa9..."));
}

TEST(EditDistance, CountsSlips) {
  EXPECT_EQ(EditDistance("", ""), 0);
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("epochs", "epochs"), 0);
  EXPECT_EQ(EditDistance("epohcs", "epochs"), 1);
  EXPECT_EQ(EditDistance("epoch", "epochs"), 1);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
}

TEST(Nearest, FindsWhatWasProbablyMeant) {
  EXPECT_EQ(Nearest("batchsize", {"epochs", "batch_size"}), "batch_size");
  EXPECT_EQ(Nearest("BATCH-SIZE", {"epochs", "batch_size"}), "batch_size");
  EXPECT_EQ(Nearest("batch", {"epochs", "batch_size"}), "batch_size");
  EXPECT_EQ(Nearest("zzz", {"epochs", "batch_size"}), "");
  EXPECT_EQ(Nearest("", {"a"}), "");
  EXPECT_EQ(Nearest("x", {}), "");
  EXPECT_EQ(Nearest(std::string(1 << 20, 'x'), {"epochs"}), "");
}

}  // namespace
}  // namespace lodestone
