// A histogram of a quantity, such as the duration of calls. For numbers that are asked for now and then and counted
// all the time: observing one takes some nanoseconds (two additions to memory that hardly any other thread writes to),
// and never waits.
//
// Thread-safe. What a snapshot holds was all observed before it was returned, and has all that was observed before it
// was asked for; what comes meanwhile may be in it or not.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace lodestone {

// Nanoseconds on the steady clock: what durations are taken with.
inline int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class Histogram {
 public:
  // What is observed: durations, in buckets from 10 us to 100 s; or numbers, in buckets from 0.1 to a million.
  enum class Of { kSeconds, kNumbers };

  // Buckets with an upper bound: 1, 2.5, 5, 10, ... times the lowest one. What is above all of them has one more.
  static constexpr size_t kBounds = 22;

  explicit Histogram(Of of) : of_(of), bounds_(of == Of::kSeconds ? kNanoseconds : kThousandths) {}
  Histogram(const Histogram&) = delete;
  Histogram& operator=(const Histogram&) = delete;

  // REQUIRES: kSeconds. Below 0 counts as 0.
  void ObserveNs(int64_t ns) { Observe(ns > 0 ? static_cast<uint64_t>(ns) : 0); }
  // REQUIRES: kNumbers. Counts in thousandths; below 0 (and what is no number) as 0, above 10^15 as that.
  void ObserveNumber(double number) {
    Observe(number > 0 ? static_cast<uint64_t>((number < 1e15 ? number : 1e15) * 1000 + 0.5) : 0);
  }

  struct Snapshot {
    std::array<uint64_t, kBounds + 1> counts = {};  // By bucket; each value is in one.
    uint64_t count = 0;                             // Of all.
    double sum = 0;                                 // In seconds, or of the numbers.
  };
  Snapshot snapshot() const {
    Snapshot all;
    uint64_t sum = 0;
    for (const Cells& cells : cells_) {
      for (size_t i = 0; i <= kBounds; ++i) all.counts[i] += cells.counts[i].load(std::memory_order_relaxed);
      sum += cells.sum.load(std::memory_order_relaxed);
    }
    for (const uint64_t count : all.counts) all.count += count;
    all.sum = static_cast<double>(sum) / UnitsPerOne();
    return all;
  }
  // The upper bound of bucket `i` < kBounds, which belongs to it: in seconds, or a number.
  double bound(size_t i) const { return static_cast<double>(bounds_.at[i]) / UnitsPerOne(); }

 private:
  // Threads share these sets of cells, so that few write to the same.
  static constexpr size_t kCells = 16;
  struct alignas(64) Cells {
    std::array<std::atomic<uint64_t>, kBounds + 1> counts = {};
    std::atomic<uint64_t> sum = 0;
  };

  // In units: nanoseconds, or thousandths.
  struct Bounds {
    constexpr explicit Bounds(uint64_t lowest) {
      for (size_t i = 0; i < kBounds; i += 3, lowest *= 10) {
        at[i] = lowest;
        if (i + 1 < kBounds) at[i + 1] = lowest / 2 * 5;
        if (i + 2 < kBounds) at[i + 2] = lowest * 5;
      }
      at[kBounds] = UINT64_MAX;
      for (size_t width = 0; width < first.size(); ++width) {
        const uint64_t least = width == 0 ? 0 : uint64_t{1} << (width - 1);
        while (at[first[width]] < least) ++first[width];
      }
    }
    std::array<uint64_t, kBounds + 1> at = {};
    // By the number of a value's bits: the first bucket that the least of such values can be in. The largest one is in
    // the next at most, because each bound is at least twice the one before.
    std::array<uint8_t, 65> first = {};
  };
  static const Bounds kNanoseconds;
  static const Bounds kThousandths;

  double UnitsPerOne() const { return of_ == Of::kSeconds ? 1e9 : 1e3; }

  static size_t CellsOfThisThread() {
    static std::atomic<size_t> threads{0};
    thread_local const size_t number = threads.fetch_add(1, std::memory_order_relaxed);
    return number % kCells;
  }

  void Observe(uint64_t value) {
    size_t bucket = bounds_.first[std::bit_width(value)];
    bucket += value > bounds_.at[bucket];
    Cells& cells = cells_[CellsOfThisThread()];
    cells.counts[bucket].fetch_add(1, std::memory_order_relaxed);
    if (value > 0) cells.sum.fetch_add(value, std::memory_order_relaxed);
  }

  const Of of_;
  const Bounds& bounds_;
  std::array<Cells, kCells> cells_;
};

inline constexpr Histogram::Bounds Histogram::kNanoseconds{10'000};
inline constexpr Histogram::Bounds Histogram::kThousandths{100};

}  // namespace lodestone
