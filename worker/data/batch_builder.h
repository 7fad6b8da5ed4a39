// A batch that is put together of parsed samples, one after another.
//
// Thread safety: the functions are pure but for the batch.
#pragma once

#include "worker/data/dataset.h"
#include "worker/data/line_parser.h"

namespace lodestone::worker {

// Empties the batch and keeps its memory.
void ClearBatch(Batch* batch);

// Adds a sample, whose numbers are final. REQUIRES: as many numbers as the samples before have.
void AppendSample(float label, const ParsedLine& sample, Batch* batch);

}  // namespace lodestone::worker
