// What tests of Membership with followers begin with: its options, and a server's Join.
#pragma once

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/base/time_source.h"
#include "proto/coordinator.pb.h"
#include "server/coordinator/membership.h"

namespace lodestone::server {

inline constexpr uint32_t kLeaseMs = 1000;  // Of members, unless a test says otherwise.

// Of a cluster "test" with one worker.
inline Membership::Options ReplicatedOptions(uint32_t servers, uint32_t shards, uint32_t replicas, uint32_t lease_ms,
                                             bool ends_with_server_0, const TimeSource* time) {
  Membership::Options options;
  options.cluster = "test";
  options.servers = servers;
  options.workers = 1;
  options.shards = shards;
  options.replicas = replicas;
  options.lease_ms = lease_ms;
  options.ends_with_server_0 = ends_with_server_0;
  options.first_incarnation = 100;
  options.time = time;
  return options;
}

// Of a server at an address of its own.
inline v1::JoinRequest ServerJoin(uint32_t server, uint32_t shards) {
  v1::JoinRequest request;
  request.set_role(v1::ROLE_SERVER);
  request.set_address(absl::StrCat("host:", 1 + server));
  request.set_index_plus_one(server + 1);
  request.set_cluster("test");
  request.set_shards(shards);
  return request;
}

}  // namespace lodestone::server
