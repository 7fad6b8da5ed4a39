// Evicted keys as the log keeps them.
//
// Thread safety: pure functions.
#pragma once

#include <vector>

#include "proto/log.pb.h"
#include "server/table/evictions.h"

namespace lodestone::server {

inline v1::EvictedRows ToProto(const EvictedKeys& group) {
  v1::EvictedRows proto;
  proto.set_table(group.table);
  proto.mutable_keys()->Add(group.keys.begin(), group.keys.end());
  return proto;
}

inline std::vector<EvictedKeys> FromProto(const google::protobuf::RepeatedPtrField<v1::EvictedRows>& groups) {
  std::vector<EvictedKeys> result;
  for (const v1::EvictedRows& group : groups) {
    result.push_back({group.table(), {group.keys().begin(), group.keys().end()}});
  }
  return result;
}

}  // namespace lodestone::server
