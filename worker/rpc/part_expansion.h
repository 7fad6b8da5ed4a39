// The division of parts that are of several shards (Part.shards) into parts of one: for a ps that does not take the
// former, and for what is divided by shard. The payload's bytes stay in their order, but for keys that lie in the
// parts.
//
// Thread safety: pure.
#pragma once

#include <span>
#include <vector>

#include "google/protobuf/repeated_ptr_field.h"
#include "proto/parameter_server.pb.h"
#include "worker/rpc/call_payload.h"

namespace lodestone::worker {

using Parts = google::protobuf::RepeatedPtrField<v1::Part>;

// The parts of one shard that `parts` are, whose sizes are `sizes`. Appends theirs to `expanded`.
Parts ExpandParts(const Parts& parts, std::span<const CallPayload::PartSizes> sizes,
                  std::vector<CallPayload::PartSizes>* expanded);

// The same of all parts of a call, a push's before a pull's, and of its payload's sizes.
void ExpandCall(v1::Call* call, std::vector<CallPayload::PartSizes>* sizes);

// At most so many bytes does a call grow by that.
size_t ExpansionBytesMax(const v1::Call& call);

}  // namespace lodestone::worker
