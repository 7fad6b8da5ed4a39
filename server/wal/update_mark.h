// The mark of an update: what a copy of a shard is recognised by. Versions and terms are numbers that a cluster that
// lost its coordinator's state, or went back to a checkpoint, counts again; a mark is of one update only.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "common/base/hash.h"
#include "common/base/types.h"
#include "proto/log.pb.h"

namespace lodestone::server {

// An update of a shard; 0 as its mark: it is not known which one made the version.
struct MarkedVersion {
  Version version = 0;
  uint64_t mark = 0;
};

// Of the update that `record` is, or is a piece of: never 0.
inline uint64_t MarkOf(const v1::LogRecord& record) {
  uint64_t mark = Mix64(record.shard() + 1);
  for (const uint64_t part : {record.version(), record.term(), record.now_ms(), uint64_t{record.push().worker()},
                              record.push().sequence(), static_cast<uint64_t>(record.what_case())}) {
    mark = Mix64(mark ^ part);
  }
  return mark == 0 ? 1 : mark;
}

// The term of the update before it, by what its owner logged.
inline uint64_t TermBefore(const v1::LogRecord& record) {
  return record.has_previous_term() ? record.previous_term() : record.term();
}

}  // namespace lodestone::server
