#include <cmath>
#include <map>
#include <set>

#include "tests/worker/data/test_files.h"
#include "worker/data/zipf.h"

namespace lodestone::worker {
namespace {

TEST(Zipf, DrawsRanksAsOftenAsTheDistributionSays) {
  constexpr int kDraws = 200000;
  for (double exponent : {0.0, 0.5, 1.0, 1.05, 2.0, 10.0}) {
    for (uint64_t n : {uint64_t{1}, uint64_t{2}, uint64_t{10}, uint64_t{1000}}) {
      const Zipf zipf(n, exponent);
      std::vector<int> counts(n + 1);
      for (int i = 0; i < kDraws; ++i) {
        const uint64_t rank = zipf.Draw(7, i);
        ASSERT_GE(rank, 1);
        ASSERT_LE(rank, n);
        ++counts[rank];
      }
      double sum = 0;
      for (uint64_t k = 1; k <= n; ++k) sum += std::pow(k, -exponent);
      for (uint64_t k = 1; k <= n; ++k) {
        const double p = std::pow(k, -exponent) / sum;
        // Binomial: 5.5 deviations are exceeded once in 10^7 cases; there are 4000 here.
        EXPECT_NEAR(counts[k], kDraws * p, 5.5 * std::sqrt(kDraws * p * (1 - p)) + 1e-9 + 2 * (kDraws * p < 1))
            << "exponent " << exponent << " n " << n << " rank " << k;
      }
    }
  }
}

TEST(Zipf, CopesWithVeryManyValues) {
  for (double exponent : {0.0, 1.0, 1.5}) {
    const Zipf zipf(uint64_t{1} << 50, exponent);
    for (int i = 0; i < 1000; ++i) EXPECT_LE(zipf.Draw(3, i), uint64_t{1} << 50);
  }
}

v1::Config Clicks(uint64_t train, uint64_t test) {
  v1::Config config;
  config.mutable_data()->mutable_generated()->set_train_samples(train);
  config.mutable_data()->mutable_generated()->set_test_samples(test);
  return config;
}

TEST(GeneratedClicks, AreTheSameForTheSameSeedOnly) {
  auto config = Clicks(300, 200);
  const auto a = Load(config);
  const auto b = Load(config);
  ASSERT_TRUE(a.ok()) << a.status();
  const Batch first = ReadAll(*a->train);
  const Batch again = ReadAll(*b->train);
  EXPECT_EQ(first.labels, again.labels);
  EXPECT_EQ(first.keys, again.keys);
  EXPECT_EQ(first.numeric, again.numeric);
  EXPECT_EQ(*a->best_reachable, *b->best_reachable);
  EXPECT_NE(ReadAll(*a->test).numeric, Batch(first).numeric);
  config.mutable_cluster()->set_seed(2);
  EXPECT_NE(ReadAll(*Load(config)->train).keys, first.keys);
}

TEST(GeneratedClicks, DependOnTheSamplesIndexAlone) {
  const Batch few = ReadAll(*Load(Clicks(100, 100))->test);
  const Batch more = ReadAll(*Load(Clicks(1000, 200))->test);
  for (size_t i = 0; i < few.labels.size(); ++i) EXPECT_EQ(few.labels[i], more.labels[i]);
  for (size_t i = 0; i < few.keys.size(); ++i) EXPECT_EQ(few.keys[i], more.keys[i]);
}

TEST(GeneratedClicks, HaveTheShapeThatIsConfigured) {
  auto config = Clicks(20000, 1000);
  v1::GeneratedConfig& generated = *config.mutable_data()->mutable_generated();
  generated.set_categorical_fields(3);
  generated.set_numeric_fields(2);
  generated.set_values_per_field(5);
  const auto data = Load(config);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->schema.field_count, 3);
  EXPECT_EQ(data->schema.numeric_count, 2);
  const Batch batch = ReadAll(*data->train);
  std::map<Key, int> field_of;
  for (size_t i = 0; i < batch.keys.size(); ++i) {
    const auto [known, inserted] = field_of.emplace(batch.keys[i], i % 3);
    EXPECT_EQ(known->second, i % 3) << "a key of two fields";
  }
  EXPECT_EQ(field_of.size(), 15);
  double sum = 0, square = 0;
  for (float x : batch.numeric) sum += x, square += x * x;
  // 40000 standard normal numbers: 5 deviations of their mean and mean square.
  EXPECT_NEAR(sum / 40000, 0, 5 / 200.0);
  EXPECT_NEAR(square / 40000, 1, 5 * std::sqrt(2.0) / 200);
}

TEST(GeneratedClicks, ArePositiveAsOftenAsConfigured) {
  for (double share : {0.002, 0.25, 0.9}) {
    auto config = Clicks(200000, 1000);
    config.mutable_data()->mutable_generated()->set_positive_share(share);
    const auto data = Load(config);
    ASSERT_TRUE(data.ok()) << data.status();
    const double found = data->schema.class_counts[1] / 200000.0;
    // The bias is calibrated on 65536 samples; both means carry less noise than 65536 draws of a coin do.
    EXPECT_NEAR(found, share, 5 * 2 * std::sqrt(share * (1 - share) / 65536));
    EXPECT_EQ(found, data->schema.label_mean);
    double positives = 0;
    for (float label : ReadAll(*data->train).labels) positives += label;
    EXPECT_EQ(positives, data->schema.class_counts[1]);
  }
}

TEST(GeneratedClicks, KnowTheBestReachableAuc) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    auto config = Clicks(1000, 20000);
    config.mutable_cluster()->set_seed(seed);
    const auto data = Load(config);
    ASSERT_TRUE(data.ok()) << data.status();
    EXPECT_EQ(data->best_reachable_metric, "auc");
    EXPECT_GT(*data->best_reachable, 0.82) << "seed " << seed;
    EXPECT_LT(*data->best_reachable, 0.92) << "seed " << seed;
  }
}

TEST(GeneratedClicks, WorkWithOneFieldWithoutNumbersAndWithHugeFields) {
  auto config = Clicks(2000, 2000);
  v1::GeneratedConfig& generated = *config.mutable_data()->mutable_generated();
  generated.set_categorical_fields(1);
  generated.set_numeric_fields(0);
  auto data = Load(config);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_GT(*data->best_reachable, 0.75);
  generated.set_categorical_fields(20);
  generated.set_values_per_field(uint64_t{1} << 40);
  generated.set_zipf_exponent(0);
  data = Load(config);
  ASSERT_TRUE(data.ok()) << data.status();
  const Batch batch = ReadAll(*data->train);
  EXPECT_EQ(std::set<Key>(batch.keys.begin(), batch.keys.end()).size(), 40000);
}

TEST(GeneratedClicks, ShowTransformedNumbers) {
  auto config = Clicks(50000, 100);
  const Batch plain = ReadAll(*Load(config)->train);
  config.mutable_data()->set_numeric(v1::LOG);
  const Batch log = ReadAll(*Load(config)->train);
  EXPECT_EQ(log.labels, plain.labels);
  config.mutable_data()->set_numeric(v1::LOG_STANDARDIZE);
  const Batch standard = ReadAll(*Load(config)->train);
  double square = 0;
  for (size_t i = 0; i < plain.numeric.size(); ++i) {
    // One of the numbers was rounded to float before its logarithm.
    EXPECT_NEAR(log.numeric[i], std::copysign(std::log1p(std::fabs(plain.numeric[i])), plain.numeric[i]), 1e-6);
    square += standard.numeric[i] * standard.numeric[i];
  }
  // 200000 numbers whose squares have a deviation below 2.
  EXPECT_NEAR(square / plain.numeric.size(), 1, 5 * 2 / std::sqrt(200000.0));
}

TEST(GeneratedClicks, MayBeNumbersForTheSquaredLoss) {
  const auto data = Load(Clicks(1000, 5000), LabelKind::kNumber);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_TRUE(data->schema.class_names.empty());
  EXPECT_EQ(data->best_reachable_metric, "rmse");
  EXPECT_LT(*data->best_reachable, std::sqrt(0.25 * 0.75));  // Better than the mean.
}

TEST(GeneratedRatings, HaveTheNoiseAsBestReachableRmse) {
  v1::Config config = Clicks(20000, 20000);
  v1::GeneratedConfig& generated = *config.mutable_data()->mutable_generated();
  generated.set_kind(v1::GeneratedConfig::RATINGS);
  generated.set_users(50);
  generated.set_items(40);
  const auto data = Load(config, LabelKind::kNumber);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->schema.field_count, 2);
  EXPECT_EQ(data->schema.numeric_count, 0);
  EXPECT_EQ(data->best_reachable_metric, "rmse");
  // The deviation of n normal numbers has relative deviation 1 / sqrt(2 n).
  EXPECT_NEAR(*data->best_reachable, 0.3, 5 * 0.3 / std::sqrt(2 * 20000.0));
  const Batch batch = ReadAll(*data->train);
  std::map<std::pair<Key, Key>, std::vector<float>> ratings;
  std::set<Key> users, items;
  double sum = 0;
  for (size_t i = 0; i < batch.size; ++i) {
    users.insert(batch.keys[2 * i]);
    items.insert(batch.keys[2 * i + 1]);
    ratings[{batch.keys[2 * i], batch.keys[2 * i + 1]}].push_back(batch.labels[i]);
    sum += batch.labels[i];
  }
  EXPECT_EQ(users.size(), 50);
  EXPECT_EQ(items.size(), 40);
  for (Key user : users) EXPECT_EQ(items.count(user), 0);
  EXPECT_NEAR(data->schema.label_mean, sum / 20000, 1e-9 * 20000);
  // Ratings of one user for one item differ by the noise alone: the unbiased variance over about 18000 differences.
  double square = 0, freedom = 0;
  for (const auto& [pair, list] : ratings) {
    double mean = 0;
    for (float rating : list) mean += rating / list.size();
    for (float rating : list) square += (rating - mean) * (rating - mean);
    freedom += list.size() - 1;
  }
  EXPECT_NEAR(std::sqrt(square / freedom), 0.3, 5 * 0.3 / std::sqrt(2 * freedom));
}

TEST(GeneratedRatings, AreNoClasses) {
  v1::Config config = Clicks(100, 100);
  config.mutable_data()->mutable_generated()->set_kind(v1::GeneratedConfig::RATINGS);
  ExpectError(Load(config), {"squared"});
}

TEST(Generated, DataHasNoLabelMap) {
  v1::Config config = Clicks(100, 100);
  (*config.mutable_data()->mutable_label_map())["1"] = 1;
  ExpectError(Load(config), {"data.label_map"});
}

}  // namespace
}  // namespace lodestone::worker
