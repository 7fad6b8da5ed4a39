// How a model's steps are ordered among those of other workers: what the consistency of its tables comes to for a
// worker.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "proto/config.pb.h"
#include "proto/table.pb.h"

namespace lodestone::worker {

// The consistency of a group of tables: its own, or else train.consistency, with the numbers that are cluster.workers
// by default filled in. Empty: async, at the full rate.
v1::Consistency ConsistencyOf(const v1::Config& config, const v1::TableConfig& group);

// What a worker with these tables has to keep to: sync or tokens, which all of them have then (CheckConfig); or the
// least staleness of those that are bounded. Empty: async.
v1::Consistency StepOrderOf(const std::vector<v1::TableSpec>& tables);

// "sync, steps of 4 batches"; empty for async.
std::string InWords(const v1::Consistency& consistency);

}  // namespace lodestone::worker
