#include "worker/model/keyed_batch.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/limits.h"

namespace lodestone::worker {
namespace {

constexpr size_t kAhead = 32;

}  // namespace

kernels::SparseBatch KeyedBatch::SparseOf(size_t group) const {
  const std::vector<uint32_t>& offsets = OffsetsOf(group);
  const std::vector<float>& values = ValuesOf(group);
  return {offsets.empty() ? 0 : offsets.size() - 1, offsets.data(), groups[group].row.data(),
          values.empty() ? nullptr : values.data()};
}

BatchView KeyedBatch::view() const {
  BatchView view;
  view.size = batch.size;
  for (size_t g = 0; g < groups.size(); ++g) {
    view.groups.push_back({groups[g].keys.size(), SparseOf(g), groups[g].row.size()});
  }
  view.numeric = batch.numeric.data();
  view.labels = batch.labels.data();
  view.weights = batch.weights_or_null();
  view.candidates = batch.candidates.empty() ? nullptr : batch.candidates.data();
  view.label_weights = batch.label_weights.empty() ? nullptr : batch.label_weights.data();
  return view;
}

void KeyIndexer::Index(KeyedBatch* batch) {
  batch->groups.resize(groups_.count());
  if (groups_.count() == 1) return Count(batch->batch.keys, &batch->groups[0]);
  for (size_t g = 0; g < groups_.count(); ++g) {
    Take(batch->batch, groups_.fields[g], &batch->groups[g]);
    Count(features_, &batch->groups[g]);
  }
}

absl::Status KeyIndexer::Read(const Dataset& data, std::span<const uint64_t> indices, KeyedBatch* batch) {
  data.Read(indices, &batch->batch);
  const size_t features = batch->batch.keys.size();
  if (features > limits::kRowsPerBatchMax) {
    return absl::ResourceExhaustedError(absl::StrCat("a batch of ", indices.size(), " samples has ", features,
                                                     " features, the limit is ", limits::kRowsPerBatchMax,
                                                     "; if it is one of training, lower train.batch_size"));
  }
  Index(batch);
  return absl::OkStatus();
}

void KeyIndexer::Take(const Batch& batch, std::span<const uint32_t> fields, KeyedBatch::Group* to) {
  size_t all_fields = 0;
  for (const std::vector<uint32_t>& of_group : groups_.fields) all_fields += of_group.size();
  // Fields with several keys have an offset each, others are as many as there are keys.
  const bool pooled = batch.offsets.size() == batch.size * all_fields + 1;
  LODESTONE_CHECK(pooled || batch.keys.size() == batch.size * all_fields);
  features_.clear();
  to->values.clear();
  to->offsets.assign(1, 0);
  for (size_t s = 0; s < batch.size; ++s) {
    for (const uint32_t field : fields) {
      const size_t at = s * all_fields + field;
      const size_t begin = pooled ? batch.offsets[at] : at, end = pooled ? batch.offsets[at + 1] : at + 1;
      features_.insert(features_.end(), batch.keys.begin() + begin, batch.keys.begin() + end);
      if (!batch.values.empty()) {
        to->values.insert(to->values.end(), batch.values.begin() + begin, batch.values.begin() + end);
      }
      if (pooled) to->offsets.push_back(static_cast<uint32_t>(features_.size()));
    }
    if (!pooled) to->offsets.push_back(static_cast<uint32_t>(features_.size()));
  }
}

void KeyIndexer::Count(std::span<const Key> features, KeyedBatch::Group* group) {
  LODESTONE_CHECK(features.size() <= limits::kRowsPerBatchMax);
  group->keys.clear();
  group->row.resize(features.size());
  const size_t capacity = std::bit_ceil(std::max<size_t>(2 * features.size(), 64));
  if (slots_.size() < capacity || ++round_ == 0) {
    slots_.assign(std::max(capacity, slots_.size()), Slot{});
    round_ = 1;
  }
  // The slots of some features are asked for before the first of them is needed: the memory that they lie in has been
  // pushed out of the caches by what came since the last batch.
  for (size_t begin = 0; begin < features.size(); begin += kAhead) {
    const size_t count = std::min(kAhead, features.size() - begin);
    size_t at[kAhead];
    for (size_t i = 0; i < count; ++i) {
      at[i] = Mix64(features[begin + i]) & (slots_.size() - 1);
      __builtin_prefetch(&slots_[at[i]], /*rw=*/1);
    }
    for (size_t i = 0; i < count; ++i) group->row[begin + i] = RowOf(features[begin + i], at[i], &group->keys);
  }
}

uint32_t KeyIndexer::RowOf(Key key, size_t at, std::vector<Key>* keys) {
  while (slots_[at].round == round_ && slots_[at].key != key) at = (at + 1) & (slots_.size() - 1);
  Slot& slot = slots_[at];
  if (slot.round != round_) {
    slot = {key, static_cast<uint32_t>(keys->size()), round_};
    keys->push_back(key);
  }
  return slot.row;
}

}  // namespace lodestone::worker
