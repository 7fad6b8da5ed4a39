#include "worker/data/bucket.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace lodestone::worker {
namespace {

constexpr size_t kNumbersMax = 1 << 20;  // That quantiles are of.

int64_t Log2Bucket(double x) {
  const double size = std::fabs(x);
  if (size < 1) return 0;
  const int64_t bucket = 1 + std::ilogb(size);
  return x < 0 ? -bucket : bucket;
}

}  // namespace

absl::string_view BucketRule::TextOf(double number, std::string* scratch) const {
  const int64_t bucket = kind == Kind::kLog2 ? Log2Bucket(number)
                         : kind == Kind::kTime
                             ? static_cast<int64_t>(std::floor(time.Of(number)))
                             : std::upper_bound(bounds.begin(), bounds.end(), number) - bounds.begin();
  scratch->clear();
  absl::StrAppend(scratch, bucket);
  return *scratch;
}

BucketRule::Kind BucketKindOf(v1::CsvConfig::Bucket bucket) {
  return bucket == v1::CsvConfig::LOG2 ? BucketRule::Kind::kLog2 : BucketRule::Kind::kQuantiles;
}

std::string BucketName(BucketRule::Kind kind) {
  if (kind == BucketRule::Kind::kText || kind == BucketRule::Kind::kTime) return "";
  return absl::AsciiStrToLower(
      v1::CsvConfig::Bucket_Name(kind == BucketRule::Kind::kLog2 ? v1::CsvConfig::LOG2 : v1::CsvConfig::QUANTILES));
}

void Quantiles::Add(double number) {
  if (std::isnan(number) || count_++ % stride_ != 0) return;
  numbers_.push_back(number);
  if (numbers_.size() < kNumbersMax) return;
  for (size_t i = 0; i < kNumbersMax / 2; ++i) numbers_[i] = numbers_[2 * i];
  numbers_.resize(kNumbersMax / 2);
  stride_ *= 2;
}

std::vector<double> Quantiles::Bounds(uint32_t buckets) const {
  std::vector<double> sorted = numbers_, bounds;
  std::sort(sorted.begin(), sorted.end());
  for (uint64_t i = 1; i < buckets && !sorted.empty(); ++i) {
    const double bound = sorted[i * sorted.size() / buckets];
    // Nothing is below the least number.
    if (bound > (bounds.empty() ? sorted.front() : bounds.back())) bounds.push_back(bound);
  }
  return bounds;
}

}  // namespace lodestone::worker
