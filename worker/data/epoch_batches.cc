#include "worker/data/epoch_batches.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"

namespace lodestone::worker {
namespace {

// Samples; what 100 to 10,000 bytes each make of it is read ahead in a second or so, and held by most machines twice.
constexpr uint64_t kSpillingWindow = 1 << 18;

}  // namespace

EpochBatches::EpochBatches(uint64_t size, double epochs, uint64_t batch_size, uint64_t seed, bool shuffle,
                           uint64_t window)
    : size_(size),
      batch_size_(batch_size),
      seed_(seed),
      shuffle_(shuffle),
      window_(window),
      total_samples_(static_cast<uint64_t>(std::llround(epochs * static_cast<double>(size)))) {
  LODESTONE_CHECK(batch_size > 0 && epochs >= 0);
}

uint64_t EpochBatches::WindowOf(const v1::Config& config) {
  if (config.train().shuffle_window() > 0) return config.train().shuffle_window();
  return config.data().spill_dir().empty() ? 0 : kSpillingWindow;
}

uint64_t EpochBatches::batches() const {
  if (size_ == 0) return 0;
  return total_samples_ / size_ * epoch_batches() + BatchesOf(total_samples_ % size_);
}

void EpochBatches::Read(uint64_t number, std::vector<uint64_t>* indices) {
  LODESTONE_CHECK(number < batches());
  indices->clear();
  const uint64_t epoch = number / epoch_batches();
  if (!order_.has_value() || epoch != epoch_) order_.emplace(OrderOf(epoch));
  epoch_ = epoch;
  const uint64_t samples = std::min(size_, total_samples_ - epoch * size_);
  const uint64_t batches = BatchesOf(samples), batch = number - epoch * epoch_batches();
  const auto begin_of = [&](uint64_t of) {
    return static_cast<uint64_t>(static_cast<unsigned __int128>(samples) * of / batches);
  };
  if (data_ != nullptr && order_->runs() > 0) ReadAhead(begin_of(batch + 1) - 1);
  for (uint64_t i = begin_of(batch); i < begin_of(batch + 1); ++i) indices->push_back(order_->At(i));
}

bool EpochBatches::Next(std::vector<uint64_t>* indices) {
  indices->clear();
  if (next_ == batches()) return false;
  Read(next_++, indices);
  return true;
}

void EpochBatches::ReadAhead(uint64_t position) {
  const uint64_t runs = order_->runs(), place = order_->PlaceOf(position);
  const uint64_t window_begin = place / order_->window_runs() * order_->window_runs();
  const uint64_t window_end = std::min(runs, window_begin + order_->window_runs());
  // All of this window, and as much of the next as has passed of this one.
  const uint64_t begin = epoch_ * runs + window_begin, end = epoch_ * runs + window_end + (place - window_begin + 1);
  const uint64_t last = (total_samples_ + size_ - 1) / size_ * runs;
  if (begin < told_begin_ || begin > told_end_) told_end_ = begin;  // A leased range, somewhere else.
  told_begin_ = begin;
  std::optional<EpochOrder> next;
  for (; told_end_ < std::min(end, last); ++told_end_) {
    const bool of_next = told_end_ / runs != epoch_;
    if (of_next && !next.has_value()) next.emplace(OrderOf(epoch_ + 1));
    const EpochOrder::Run run = (of_next ? *next : *order_).RunAt(told_end_ % runs);
    data_->WillRead(run.first, run.count);
  }
}

}  // namespace lodestone::worker
