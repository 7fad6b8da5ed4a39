// A place in the cluster, an index among the servers or the workers, and its latest holder: all that the coordinator
// knows of a process.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/types.h"
#include "proto/coordinator.pb.h"

namespace lodestone::server {

struct MemberPlace {
  v1::Role role = v1::ROLE_UNSPECIFIED;
  uint32_t index = 0;
  Incarnation incarnation = 0;          // 0: no process has held the place yet.
  uint64_t token = 0;                   // Of its Join; 0: it sent none.
  std::vector<uint64_t> former_tokens;  // Servers: of those that had the place, or its holder's folder, before.
  std::string address;
  std::string local_socket;
  std::string zone;  // Servers: server.zone; empty: it names none.
  std::string peer;
  std::optional<v1::ServerData> data;  // Servers: as it said in Join.
  int64_t last_contact_ms = 0;
  bool left = false;
  bool gone = false;  // Its process was found dead before its lease ended.
  bool expiry_told = false;
  bool silent = false;                               // Restored, and not heard of since: its progress is of then.
  uint64_t report_sequence = 0;                      // The greatest of its reports.
  v1::WorkerProgress progress;                       // Workers.
  v1::ServerProgress server;                         // Servers.
  std::map<ShardId, Version> copies;                 // Servers: what the last heartbeat said that it holds.
  uint64_t ended_heard = 0;                          // Servers: HeartbeatRequest.workers_ended_from of the last.
  uint64_t event_ms = 0;                             // The time of the newest event that the process has reported.
  std::deque<std::pair<int64_t, uint64_t>> samples;  // When, and how many in all: of the last seconds.
  // The same of the time by stage.
  std::deque<std::pair<int64_t, google::protobuf::RepeatedPtrField<v1::StageTime>>> stages;
  bool any_place = false;  // Workers: as they said in Join.
  std::string watched_at;  // Workers: where it can be seen that the process lives; empty: nowhere.
};

// Places by index. Those that are there stay where they are when others are added.
using MemberPlaces = std::deque<MemberPlace>;

// Whether the folder of `data` is that of `former`, which is not 0.
inline bool IsSameFolder(const v1::ServerData& data, const v1::ServerData& former) {
  return former.folder() != 0 && data.folder() == former.folder();
}
// Whether it is that folder as it was before a life that has begun in it: an older copy was put in its place.
inline bool IsOlderCopy(const v1::ServerData& data, const v1::ServerData& former) {
  return IsSameFolder(data, former) && data.has_generation() && data.generation() < former.generation();
}
// Whether it is an older copy, or one in which more lives have begun than its place knows of: an older copy was served
// from since. That the last life of the place has begun may not have been heard of.
inline bool IsOtherCopy(const v1::ServerData& data, const v1::ServerData& former) {
  const uint64_t known = former.generation();
  return IsOlderCopy(data, former) || (IsSameFolder(data, former) && known > 0 && data.generation() > known + 1);
}

// "ps" or "worker".
inline std::string RoleName(v1::Role role) { return role == v1::ROLE_SERVER ? "ps" : "worker"; }
// "worker 1".
inline std::string ShortName(v1::Role role, uint32_t index) { return absl::StrCat(RoleName(role), " ", index); }

}  // namespace lodestone::server
