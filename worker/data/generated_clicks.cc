#include "worker/data/generated_clicks.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/random.h"
#include "worker/data/hashed_vector.h"
#include "worker/data/transform.h"
#include "worker/metrics/evaluation_metrics.h"

namespace lodestone::worker {
namespace {

// Streams of random numbers within cluster.seed, and within a sample's own seed.
constexpr uint64_t kClickSamples = StableHash("clicks: samples");
constexpr uint64_t kTeacher = StableHash("clicks: teacher");
constexpr uint64_t kKeys = StableHash("clicks: keys");
constexpr uint64_t kNumbers = 1;
constexpr uint64_t kLabel = 2;
constexpr uint64_t kValues = 3;

// Where test and calibration samples begin.
constexpr uint64_t kTestClicksBegin = uint64_t{1} << 62;
constexpr uint64_t kCalibrationBegin = uint64_t{1} << 63;

// The logit's standard deviation, and the shares of its variance.
constexpr double kLogitDeviation = 2.0;
constexpr double kLinearShare = 0.45;
constexpr double kNumericShare = 0.40;
constexpr double kPairsShare = 0.15;
// A value's parameters shrink with its rank k by 1 / sqrt(1 + k / this).
constexpr double kShrinkRank = 10;

// Samples whose labels are counted for the schema, at most; of more, as many evenly spread.
constexpr uint64_t kClicksCountedMax = 1 << 20;
constexpr uint64_t kClicksPerProgress = 1 << 16;

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Deviation of sign(z) * ln(1 + |z|) for a standard normal z, by the trapezoidal rule.
double SignedLogDeviation() {
  double square = 0;
  constexpr double kStep = 1e-3;
  for (double z = kStep; z < 10; z += kStep) {
    square += 2 * kStep * SignedLog(z) * SignedLog(z) * std::exp(-z * z / 2) / std::sqrt(2 * 3.141592653589793);
  }
  return std::sqrt(square);
}

float ShowNumber(v1::Transform transform, double z) {
  static const double log_deviation = SignedLogDeviation();
  const float shown = TransformNumber(transform, z);  // Standardizing leaves z as it is.
  return transform == v1::LOG_STANDARDIZE ? static_cast<float>(shown / log_deviation) : shown;
}

}  // namespace

ClickTeacher::ClickTeacher(const v1::GeneratedConfig& config, v1::Transform transform, uint64_t seed)
    : seed_(seed),
      fields_(config.categorical_fields()),
      numbers_(config.numeric_fields()),
      rank_(config.rank()),
      transform_(transform),
      zipf_(config.values_per_field(), config.zipf_exponent()) {
  Calibrate(config.positive_share());
}

ClickTeacher::Terms ClickTeacher::DrawTerms(uint64_t sample_seed, float* numeric, Key* keys) const {
  static thread_local std::vector<float> sums;
  Terms terms;
  sums.assign(rank_, 0.0f);
  float squares = 0;
  const uint64_t values_seed = StreamSeed(sample_seed, kValues);
  for (uint32_t field = 0; field < fields_; ++field) {
    const uint64_t rank = zipf_.Draw(values_seed, field);
    if (keys != nullptr) keys[field] = StreamSeed(kKeys + field, rank);
    const uint64_t entity = StreamSeed(StreamSeed(seed_, kTeacher + field), rank);
    const auto shrink = static_cast<float>(1 / std::sqrt(1 + static_cast<double>(rank) / kShrinkRank));
    terms.linear += shrink * HashedNormal(entity);
    VisitHashedVector(Mix64(entity), rank_, [&](size_t r, float x) {
      const float factor = shrink * x / static_cast<float>(1 + r);
      sums[r] += factor;
      squares += factor * factor;
    });
  }
  // Half of |sum|^2 less the squares is the sum over all pairs (Rendle 2010).
  float sum_squares = 0;
  for (float sum : sums) sum_squares += sum * sum;
  terms.pairs = (sum_squares - squares) / 2;
  const uint64_t numbers_seed = StreamSeed(sample_seed, kNumbers);
  for (uint32_t i = 0; i < numbers_; ++i) {
    const double z = RandomNormal(numbers_seed, i);
    terms.numeric += z * HashedNormal(StreamSeed(StreamSeed(seed_, kTeacher - 1), i));
    if (numeric != nullptr) numeric[i] = ShowNumber(transform_, z);
  }
  return terms;
}

double ClickTeacher::Logit(const Terms& terms) const {
  return bias_ + scales_.linear * terms.linear + scales_.pairs * terms.pairs + scales_.numeric * terms.numeric;
}

void ClickTeacher::Calibrate(double positive_share) {
  constexpr uint64_t kWorkMax = 1 << 25;  // About this many hashes.
  const uint64_t work_per_sample = uint64_t{fields_} * (4 + rank_ / 8) + numbers_ * 4;
  const uint64_t samples = std::clamp<uint64_t>(kWorkMax / std::max<uint64_t>(work_per_sample, 1), 1024, 1 << 16);
  std::vector<Terms> drawn;
  Terms mean, square;
  const auto count = static_cast<double>(samples);
  for (uint64_t i = 0; i < samples; ++i) {
    drawn.push_back(DrawTerms(StreamSeed(StreamSeed(seed_, kClickSamples), kCalibrationBegin + i), nullptr, nullptr));
    for (double Terms::*term : {&Terms::linear, &Terms::pairs, &Terms::numeric}) {
      mean.*term += drawn.back().*term / count;
      square.*term += drawn.back().*term * (drawn.back().*term) / count;
    }
  }
  // A term that does not vary (one field has no pairs) leaves its share to the others.
  const std::pair<double Terms::*, double> shares[] = {
      {&Terms::linear, kLinearShare}, {&Terms::pairs, kPairsShare}, {&Terms::numeric, kNumericShare}};
  double share_sum = 0;
  for (const auto& [term, share] : shares) {
    const double variance = square.*term - mean.*term * (mean.*term);
    scales_.*term = variance > 1e-9 * (1 + square.*term) ? std::sqrt(share / variance) : 0;
    if (scales_.*term > 0) share_sum += share;
  }
  double offset = 0;
  for (const auto& [term, share] : shares) {
    scales_.*term *= share_sum > 0 ? kLogitDeviation / std::sqrt(share_sum) : 0;
    offset -= scales_.*term * (mean.*term);
  }
  double low = -100, high = 100;
  while (high - low > 1e-9) {
    bias_ = (low + high) / 2;
    double positives = 0;
    for (const Terms& terms : drawn) positives += Sigmoid(offset + Logit(terms));
    (positives < positive_share * count ? low : high) = bias_;
  }
  bias_ += offset;
}

double ClickTeacher::Draw(uint64_t i, float* numeric, Key* keys, bool* positive) const {
  const uint64_t sample_seed = StreamSeed(StreamSeed(seed_, kClickSamples), i);
  const double probability = Sigmoid(Logit(DrawTerms(sample_seed, numeric, keys)));
  *positive = RandomUniform(sample_seed, kLabel) < probability;
  return probability;
}

namespace {

// Samples begin, begin + step, ... of a teacher.
class GeneratedClicks final : public Dataset {
 public:
  GeneratedClicks(std::shared_ptr<const ClickTeacher> teacher, uint64_t begin, uint64_t step, uint64_t size)
      : teacher_(std::move(teacher)), begin_(begin), step_(step), size_(size) {}

  uint64_t size() const override { return size_; }

  void Read(std::span<const uint64_t> indices, Batch* batch) const override {
    const size_t fields = teacher_->fields();
    const size_t numbers = teacher_->numbers();
    batch->size = indices.size();
    batch->labels.resize(indices.size());
    batch->numeric.resize(indices.size() * numbers);
    batch->keys.resize(indices.size() * fields);
    batch->values.clear();
    batch->offsets.resize(indices.size() + 1);
    for (size_t i = 0; i < indices.size(); ++i) {
      bool positive = false;
      teacher_->Draw(begin_ + indices[i] * step_, batch->numeric.data() + i * numbers, batch->keys.data() + i * fields,
                     &positive);
      batch->labels[i] = positive ? 1.0f : 0.0f;
      batch->offsets[i] = static_cast<uint32_t>(i * fields);
    }
    batch->offsets[indices.size()] = static_cast<uint32_t>(indices.size() * fields);
  }

 private:
  const std::shared_ptr<const ClickTeacher> teacher_;
  const uint64_t begin_;
  const uint64_t step_;
  const uint64_t size_;
};

}  // namespace

LoadedData GenerateClicks(const v1::GeneratedConfig& config, v1::Transform transform, uint64_t seed, LabelKind labels,
                          Partition partition, bool with_test,
                          const std::function<void(uint64_t done, uint64_t total)>& progress) {
  const auto teacher = std::make_shared<const ClickTeacher>(config, transform, seed);
  const uint64_t train_samples = config.train_samples();
  const uint64_t counted = std::min(train_samples, kClicksCountedMax);
  const uint64_t total = counted + (with_test ? config.test_samples() : 0);
  const auto tell = [&](uint64_t done) {
    if (progress != nullptr && (done % kClicksPerProgress == 0 || done == total)) progress(done, total);
  };

  LoadedData data;
  Schema& schema = data.schema;
  schema.numeric_count = teacher->numbers();
  schema.field_count = teacher->fields();
  schema.train_samples = train_samples;
  uint64_t positives = 0;
  bool positive = false;
  for (uint64_t i = 0; i < counted; ++i) {
    const auto at = static_cast<uint64_t>(static_cast<unsigned __int128>(i) * train_samples / counted);
    teacher->Draw(at, nullptr, nullptr, &positive);
    positives += positive;
    tell(i + 1);
  }
  schema.label_mean = static_cast<double>(positives) / static_cast<double>(counted);
  if (labels == LabelKind::kClass) {
    schema.class_names = {"0", "1"};
    const auto ones = static_cast<uint64_t>(std::llround(schema.label_mean * static_cast<double>(train_samples)));
    schema.class_counts = {train_samples - ones, ones};
  }
  const uint64_t size =
      train_samples > partition.index ? (train_samples - partition.index - 1) / partition.count + 1 : 0;
  data.train = std::make_unique<GeneratedClicks>(teacher, partition.index, partition.count, size);
  if (partition.index == 0 && partition.count > 1) {
    data.train_sample = std::make_unique<GeneratedClicks>(teacher, 0, 1, train_samples);
  }
  if (!with_test) return data;

  data.test = std::make_unique<GeneratedClicks>(teacher, kTestClicksBegin, 1, config.test_samples());
  EvaluationMetrics metrics(labels == LabelKind::kClass ? EvaluationMetrics::Kind::kBinary
                                                        : EvaluationMetrics::Kind::kRegression);
  for (uint64_t i = 0; i < config.test_samples(); ++i) {
    const auto probability = static_cast<float>(teacher->Draw(kTestClicksBegin + i, nullptr, nullptr, &positive));
    const float label = positive ? 1.0f : 0.0f;
    metrics.Add(1, &probability, &label, 0);
    tell(counted + i + 1);
  }
  const EvaluationMetrics::Result best = metrics.Finish();
  data.best_reachable = labels == LabelKind::kClass ? best.auc : best.rmse;
  data.best_reachable_metric = labels == LabelKind::kClass ? "auc" : "rmse";
  return data;
}

}  // namespace lodestone::worker
