#include "server/optimizer/initializer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

v1::Initializer InitializerConfig(const std::string& text) {
  v1::Initializer config;
  if (!google::protobuf::TextFormat::ParseFromString(text, &config)) ADD_FAILURE() << "not an Initializer: " << text;
  return config;
}

std::vector<float> Values(const std::string& text, uint64_t seed, uint64_t stream, uint64_t first, size_t n,
                          uint64_t fan_in = 300, uint64_t fan_out = 100) {
  std::vector<float> values(n, -99.0f);
  InitializeValues(InitializerConfig(text), seed, stream, first, n, fan_in, fan_out, values.data());
  return values;
}

const std::vector<std::string>& Distributions() {
  static const std::vector<std::string> all = {
      "",          "zeros {}", "constant { value: 2.5 }", "uniform { low: -3 high: 1 }", "normal { mean: 1 stddev: 2 }",
      "xavier {}", "he {}"};
  return all;
}

struct Moments {
  double mean = 0;
  double variance = 0;
  double kurtosis = 0;  // Fourth central moment over the squared variance.
};

Moments MomentsOf(const std::vector<float>& values) {
  Moments m;
  for (float v : values) m.mean += v / static_cast<double>(values.size());
  double fourth = 0;
  for (float v : values) {
    const double square = (v - m.mean) * (v - m.mean);
    m.variance += square / static_cast<double>(values.size());
    fourth += square * square / static_cast<double>(values.size());
  }
  m.kurtosis = fourth / (m.variance * m.variance);
  return m;
}

constexpr size_t kSamples = 400'000;

TEST(InitializeValues, DependsOnSeedStreamAndIndexAlone) {
  for (const std::string& text : Distributions()) {
    const std::vector<float> whole = Values(text, 7, 11, 1000, 67);
    EXPECT_EQ(Values(text, 7, 11, 1000, 67), whole) << text;
    for (size_t split = 0; split <= 67; ++split) {
      std::vector<float> parts = Values(text, 7, 11, 1000, split);
      const std::vector<float> rest = Values(text, 7, 11, 1000 + split, 67 - split);
      parts.insert(parts.end(), rest.begin(), rest.end());
      ASSERT_EQ(parts, whole) << text << ", split at " << split;
    }
  }
}

TEST(InitializeValues, DiffersBetweenSeedsStreamsAndIndices) {
  for (const char* text : {"uniform {}", "normal {}", "xavier {}", "he {}"}) {
    const std::vector<float> values = Values(text, 7, 11, 0, 64);
    EXPECT_NE(Values(text, 8, 11, 0, 64), values) << text;
    EXPECT_NE(Values(text, 7, 12, 0, 64), values) << text;
    EXPECT_NE(Values(text, 7, 11, 64, 64), values) << text;
    std::vector<float> sorted = values;
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(std::unique(sorted.begin(), sorted.end()), sorted.end()) << text;
  }
}

TEST(InitializeValues, FillsZerosAndConstants) {
  EXPECT_EQ(Values("", 1, 2, 3, 5), std::vector<float>(5, 0.0f));
  EXPECT_EQ(Values("zeros {}", 1, 2, 3, 5), std::vector<float>(5, 0.0f));
  EXPECT_EQ(Values("constant { value: 2.5 }", 1, 2, 3, 5), std::vector<float>(5, 2.5f));
}

// Tolerances below are five standard errors: a moment's deviation from its expectation over kSamples independent draws
// exceeds that with probability 6e-7, and the draws are fixed.
TEST(InitializeValues, BehindZeroColumnsARowIsAsAShorterOne) {
  for (const std::string& text : Distributions()) {
    const std::vector<float> shorter = Values(text, 7, 11, 0, 9);
    for (const size_t zeros : {0, 1, 5}) {
      std::vector<float> want(zeros, 0.0f);
      want.insert(want.end(), shorter.begin(), shorter.end());
      const std::string with = absl::StrCat(text, " zero_columns: ", zeros);
      for (size_t first = 0; first < want.size(); ++first) {
        for (size_t n = 0; first + n <= want.size(); ++n) {
          EXPECT_EQ(Values(with, 7, 11, first, n), std::vector<float>(want.begin() + first, want.begin() + first + n))
              << with << " from " << first << ", " << n;
        }
      }
    }
  }
}

TEST(InitializeValues, UniformIsUniformAndStaysWithinItsBounds) {
  const std::vector<float> values = Values("uniform { low: -3 high: 1 }", 1, 0, 0, kSamples);
  const Moments m = MomentsOf(values);
  const double variance = 16.0 / 12;
  EXPECT_NEAR(m.mean, -1.0, 5 * std::sqrt(variance / kSamples));
  EXPECT_NEAR(m.variance, variance, 5 * variance * std::sqrt((1.8 - 1) / kSamples));
  EXPECT_GE(*std::min_element(values.begin(), values.end()), -3.0f);
  EXPECT_LT(*std::max_element(values.begin(), values.end()), 1.0f);
}

TEST(InitializeValues, UniformNeverRoundsUpToItsUpperEnd) {
  // Two floats lie in [1, 1 + 2^-22): half of the draws would round to the upper end without care.
  const std::vector<float> values = Values("uniform { low: 1 high: 1.0000002384185791015625 }", 1, 0, 0, 10'000);
  for (float value : values) ASSERT_TRUE(value == 1.0f || value == 1.0f + 0x1.0p-23f) << value;
  EXPECT_NE(*std::min_element(values.begin(), values.end()), *std::max_element(values.begin(), values.end()));
  EXPECT_EQ(Values("uniform { low: 0.5 high: 0.5 }", 1, 0, 0, 3), std::vector<float>(3, 0.5f));
}

TEST(InitializeValues, NormalHasItsMomentsAndQuantiles) {
  const std::vector<float> values = Values("normal { mean: 1 stddev: 2 }", 1, 0, 0, kSamples);
  const Moments m = MomentsOf(values);
  EXPECT_NEAR(m.mean, 1.0, 5 * 2.0 / std::sqrt(kSamples));
  EXPECT_NEAR(m.variance, 4.0, 5 * 4.0 * std::sqrt(2.0 / kSamples));
  EXPECT_NEAR(m.kurtosis, 3.0, 5 * std::sqrt(24.0 / kSamples));
  for (double z : {-4.0, -3.0, -2.0, -1.5, -1.0, -0.3, 0.0, 0.5, 1.4, 1.6, 2.5, 3.5, 4.0}) {
    const double expected = 0.5 * std::erfc(-z / std::sqrt(2.0));
    double below = 0;
    for (float v : values) below += v < 1 + 2 * z;
    EXPECT_NEAR(below / kSamples, expected, 5 * std::sqrt(expected * (1 - expected) / kSamples)) << z;
  }
}

TEST(InitializeValues, RowsOfAnEmbeddingAreIndependentOfEachOther) {
  double product = 0;
  const size_t rows = 20'000;
  for (uint64_t key = 0; key < rows; ++key) {
    const std::vector<float> a = Values("normal { stddev: 1 }", 1, key, 0, 2);
    const std::vector<float> b = Values("normal { stddev: 1 }", 1, key + 1, 0, 2);
    product += a[0] * b[0] + a[0] * a[1] + a[1] * b[0];
  }
  EXPECT_NEAR(product / rows, 0.0, 5 * std::sqrt(3.0 / rows));
}

TEST(InitializeValues, XavierAndHeScaleWithTheFans) {
  const std::vector<float> xavier = Values("xavier {}", 1, 0, 0, kSamples, 300, 100);
  const float bound = std::sqrt(6.0f / 400);
  for (float v : xavier) ASSERT_LE(std::abs(v), bound);
  const double xavier_variance = bound * bound / 3;
  EXPECT_NEAR(MomentsOf(xavier).variance, xavier_variance, 5 * xavier_variance * std::sqrt((1.8 - 1) / kSamples));
  const Moments he = MomentsOf(Values("he {}", 1, 0, 0, kSamples, 50, 100));
  EXPECT_NEAR(he.variance, 2.0 / 50, 5 * 2.0 / 50 * std::sqrt(2.0 / kSamples));
  for (float v : Values("he {}", 1, 0, 0, 100, 0, 0)) EXPECT_TRUE(std::isfinite(v));
  for (float v : Values("xavier {}", 1, 0, 0, 100, 0, 0)) EXPECT_TRUE(std::isfinite(v));
}

TEST(CheckInitializer, RefusesParametersThatMakeNoSenseAndNamesTheField) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"constant { value: nan }", "initializer.constant.value"},
      {"uniform { low: inf }", "initializer.uniform.low"},
      {"uniform { high: nan }", "initializer.uniform.high"},
      {"uniform { low: 2 high: 1 }", "initializer.uniform.low"},
      {"normal { mean: inf }", "initializer.normal.mean"},
      {"normal { stddev: -1 }", "initializer.normal.stddev"},
      {"normal { stddev: nan }", "initializer.normal.stddev"},
  };
  for (const auto& [text, field] : cases) {
    const absl::Status status = CheckInitializer(InitializerConfig(text));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_NE(std::string(status.message()).find(field), std::string::npos) << text << ": " << status;
  }
  for (const std::string& text : Distributions()) EXPECT_TRUE(CheckInitializer(InitializerConfig(text)).ok()) << text;
}

}  // namespace
}  // namespace lodestone::server
