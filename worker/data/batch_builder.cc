#include "worker/data/batch_builder.h"

namespace lodestone::worker {

void ClearBatch(Batch* batch) {
  batch->size = 0;
  batch->labels.clear();
  batch->numeric.clear();
  batch->offsets.assign(1, 0);
  batch->keys.clear();
  batch->values.clear();
  batch->groups.clear();
  batch->weights.clear();
  batch->candidates.clear();
  batch->label_weights.clear();
}

void AppendSample(float label, const ParsedLine& sample, Batch* batch) {
  ++batch->size;
  batch->labels.push_back(label);
  batch->numeric.insert(batch->numeric.end(), sample.numeric.begin(), sample.numeric.end());
  if (!sample.values.empty() && batch->values.empty()) batch->values.resize(batch->keys.size(), 1.0f);
  batch->keys.insert(batch->keys.end(), sample.keys.begin(), sample.keys.end());
  if (!sample.values.empty()) {
    batch->values.insert(batch->values.end(), sample.values.begin(), sample.values.end());
  } else if (!batch->values.empty()) {
    batch->values.resize(batch->keys.size(), 1.0f);
  }
  if (sample.field_keys.empty()) batch->offsets.push_back(static_cast<uint32_t>(batch->keys.size()));
  for (const uint32_t count : sample.field_keys) batch->offsets.push_back(batch->offsets.back() + count);
}

}  // namespace lodestone::worker
