// A batch and its rows in a device's memory: packed on the host into one piece that the device can fetch by itself, and
// fetched while the batch before is computed.
//
// Thread safety: one thread at a time; Pack, Upload and the rest may be different ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/feature_order.h"
#include "kernels/scratch_array.h"
#include "worker/model/keyed_batch.h"

namespace lodestone::worker {

class DeviceBatch {
 public:
  // Of batches with so many groups of keys. `ordered`: with the order in which gradients are added up, so that they are
  // the same bits each time.
  DeviceBatch(kernels::Backend* backend, bool ordered, size_t groups, size_t row_tables);

  // Takes over the batch, and makes room for its rows, `row_floats` of each row table.
  // REQUIRES: nothing queued uses the batch before any more.
  void Pack(const KeyedBatch& keyed, std::span<const size_t> row_floats);
  // Starts the copies of the batch and of the rows, which must stay as they are until they were computed from.
  void Upload(std::span<const kernels::ScratchArray<float>> rows);
  // What is queued to compute from now on finds the batch and its rows there.
  void Await();

  // In the device's memory. Of the last Pack; without a sample where there was no memory for it: the backend has failed
  // then, and says so at Finish.
  const BatchView& view() const { return view_; }
  const float* rows(size_t table) const { return rows_[table].data(); }

 private:
  // Where an array of 4-byte numbers lies in the piece.
  template <typename T>
  const T* At(size_t word) const {
    return reinterpret_cast<const T*>(words_.data() + word);
  }
  // Adds an array to the piece and returns where it is.
  size_t Add(const void* data, size_t words);
  // Where the arrays of a group of keys lie.
  struct GroupPlaces {
    size_t offsets = 0, row = 0, values = 0;
    size_t feature = 0, sample = 0, chunk_begin = 0, chunk_row = 0, first_chunk = 0, end_chunk = 0;
  };
  GroupPlaces AddGroup(const KeyedBatch& keyed, size_t group);
  BatchView::Group ViewOf(const KeyedBatch& keyed, size_t group, const GroupPlaces& at);

  kernels::Backend* const backend_;
  const bool ordered_;
  const uint32_t mark_;  // Behind the copies.
  // By group.
  std::vector<kernels::FeatureOrderArrays> order_arrays_;
  std::vector<kernels::FeatureOrder> orders_;  // On the device. Their number is constant.
  std::vector<uint32_t> pieces_;               // The arrays one after another, until it is known how long they are.
  kernels::ScratchArray<uint32_t> packed_;     // The same in memory that the device can fetch from.
  kernels::ScratchArray<uint32_t> words_;      // On the device.
  std::vector<kernels::ScratchArray<float>> rows_;  // On the device.
  BatchView view_;
};

}  // namespace lodestone::worker
