// Numbers that become categories.
//
// Thread safety: a plain value, and pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/config.pb.h"
#include "proto/model.pb.h"
#include "worker/data/date_time.h"

namespace lodestone::worker {

// How a column's category comes of its field.
struct BucketRule {
  enum class Kind {
    kText,  // It is the text.
    kLog2,
    kQuantiles,
    kTime,  // It is a part of a date and time.
  };
  Kind kind = Kind::kText;
  std::vector<double> bounds;  // Of quantiles, in ascending order.
  bool counts = false;         // The bounds are not known yet: numbers are for Quantiles.
  TimeRule time;               // Of kTime: the number is its seconds.

  // The category of a number, as text. REQUIRES: it is not kText. `scratch` is where it lies.
  absl::string_view TextOf(double number, std::string* scratch) const;
};

BucketRule::Kind BucketKindOf(v1::CsvConfig::Bucket bucket);
// As descriptions call it: empty for kText and kTime.
std::string BucketName(BucketRule::Kind kind);

// The bounds of a column's quantiles, from an even sample of its numbers.
//
// Not thread-safe.
class Quantiles {
 public:
  // NaN: the number is missing.
  void Add(double number);
  // At most buckets - 1 of them, each once. REQUIRES: buckets >= 2.
  std::vector<double> Bounds(uint32_t buckets) const;

 private:
  std::vector<double> numbers_;
  uint64_t stride_ = 1;
  uint64_t count_ = 0;
};

}  // namespace lodestone::worker
