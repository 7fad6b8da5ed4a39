#include "worker/data/generated_ratings.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "worker/data/hashed_vector.h"

namespace lodestone::worker {
namespace {

// Streams of random numbers within cluster.seed, and within a sample's own seed.
constexpr uint64_t kSamples = StableHash("ratings: samples");
constexpr uint64_t kUsers = StableHash("ratings: users");
constexpr uint64_t kItems = StableHash("ratings: items");
constexpr uint64_t kUserDraw = 1;
constexpr uint64_t kItemDraw = 2;
constexpr uint64_t kNoise = 3;

constexpr uint64_t kTestBegin = uint64_t{1} << 62;
constexpr double kMean = 3.5;
constexpr float kBiasDeviation = 0.3f;
constexpr double kProductDeviation = 0.5;

constexpr uint64_t kCountedMax = 1 << 20;  // Samples whose labels are averaged for the schema, at most.
constexpr uint64_t kSamplesPerProgress = 1 << 16;

// The planted model. Thread-safe: immutable.
class RatingTeacher {
 public:
  RatingTeacher(const v1::GeneratedConfig& config, uint64_t seed)
      : samples_seed_(StreamSeed(seed, kSamples)),
        users_seed_(StreamSeed(seed, kUsers)),
        items_seed_(StreamSeed(seed, kItems)),
        users_(config.users()),
        items_(config.items()),
        noise_(config.noise()) {
    double variance = 0;
    for (uint32_t r = 0; r < config.rank(); ++r) {
      strengths_.push_back(static_cast<float>(1.0 / ((1.0 + r) * (1.0 + r))));  // Of the user's times the item's.
      variance += static_cast<double>(strengths_[r]) * strengths_[r];
    }
    for (float& strength : strengths_) strength *= static_cast<float>(kProductDeviation / std::sqrt(variance));
  }

  // The rating of sample `i`, its user's and item's keys, and the noise in it.
  float Draw(uint64_t i, Key* user_key, Key* item_key, double* noise) const {
    const uint64_t seed = StreamSeed(samples_seed_, i);
    const uint64_t user = Below(RandomBits(seed, kUserDraw), users_);
    const uint64_t item = Below(RandomBits(seed, kItemDraw), items_);
    *user_key = StreamSeed(kUsers, user);
    *item_key = StreamSeed(kItems, item);
    *noise = noise_ * RandomNormal(StreamSeed(seed, kNoise), 0);
    const uint64_t user_seed = StreamSeed(users_seed_, user);
    const uint64_t item_seed = StreamSeed(items_seed_, item);
    static thread_local std::vector<float> factors;
    factors.resize(strengths_.size());
    VisitHashedVector(Mix64(user_seed), factors.size(), [&](size_t r, float x) { factors[r] = strengths_[r] * x; });
    double rating = kMean + kBiasDeviation * (HashedNormal(user_seed) + HashedNormal(item_seed));
    VisitHashedVector(Mix64(item_seed), factors.size(), [&](size_t r, float x) { rating += factors[r] * x; });
    return static_cast<float>(rating + *noise);
  }

 private:
  static uint64_t Below(uint64_t bits, uint64_t n) {
    return static_cast<uint64_t>(static_cast<unsigned __int128>(bits) * n >> 64);
  }

  const uint64_t samples_seed_;
  const uint64_t users_seed_;
  const uint64_t items_seed_;
  const uint64_t users_;
  const uint64_t items_;
  const double noise_;
  std::vector<float> strengths_;
};

// Samples begin, begin + step, ... of a teacher.
class GeneratedRatings final : public Dataset {
 public:
  GeneratedRatings(std::shared_ptr<const RatingTeacher> teacher, uint64_t begin, uint64_t step, uint64_t size)
      : teacher_(std::move(teacher)), begin_(begin), step_(step), size_(size) {}

  uint64_t size() const override { return size_; }

  void Read(std::span<const uint64_t> indices, Batch* batch) const override {
    batch->size = indices.size();
    batch->labels.resize(indices.size());
    batch->numeric.clear();
    batch->keys.resize(2 * indices.size());
    batch->values.clear();
    batch->offsets.resize(indices.size() + 1);
    batch->offsets[0] = 0;
    double noise = 0;
    for (size_t i = 0; i < indices.size(); ++i) {
      Key* keys = batch->keys.data() + 2 * i;
      batch->labels[i] = teacher_->Draw(begin_ + indices[i] * step_, keys, keys + 1, &noise);
      batch->offsets[i + 1] = static_cast<uint32_t>(2 * (i + 1));
    }
  }

 private:
  const std::shared_ptr<const RatingTeacher> teacher_;
  const uint64_t begin_;
  const uint64_t step_;
  const uint64_t size_;
};

}  // namespace

LoadedData GenerateRatings(const v1::GeneratedConfig& config, uint64_t seed, Partition partition, bool with_test,
                           const std::function<void(uint64_t done, uint64_t total)>& progress) {
  const auto teacher = std::make_shared<const RatingTeacher>(config, seed);
  const uint64_t train_samples = config.train_samples();
  const uint64_t counted = std::min(train_samples, kCountedMax);
  const uint64_t total = counted + (with_test ? config.test_samples() : 0);
  const auto tell = [&](uint64_t done) {
    if (progress != nullptr && (done % kSamplesPerProgress == 0 || done == total)) progress(done, total);
  };

  LoadedData data;
  data.schema.field_count = 2;
  data.schema.train_samples = train_samples;
  Key user = 0, item = 0;
  double noise = 0;
  double sum = 0;
  for (uint64_t i = 0; i < counted; ++i) {
    const auto at = static_cast<uint64_t>(static_cast<unsigned __int128>(i) * train_samples / counted);
    sum += teacher->Draw(at, &user, &item, &noise);
    tell(i + 1);
  }
  data.schema.label_mean = sum / static_cast<double>(counted);
  const uint64_t size =
      train_samples > partition.index ? (train_samples - partition.index - 1) / partition.count + 1 : 0;
  data.train = std::make_unique<GeneratedRatings>(teacher, partition.index, partition.count, size);
  if (partition.index == 0 && partition.count > 1) {
    data.train_sample = std::make_unique<GeneratedRatings>(teacher, 0, 1, train_samples);
  }
  if (!with_test) return data;

  data.test = std::make_unique<GeneratedRatings>(teacher, kTestBegin, 1, config.test_samples());
  double square_sum = 0;
  for (uint64_t i = 0; i < config.test_samples(); ++i) {
    teacher->Draw(kTestBegin + i, &user, &item, &noise);
    square_sum += noise * noise;
    tell(counted + i + 1);
  }
  data.best_reachable = std::sqrt(square_sum / static_cast<double>(config.test_samples()));
  data.best_reachable_metric = "rmse";
  return data;
}

}  // namespace lodestone::worker
