// A push on its way through a ps: what it is and what has become of it so far.
//
// Thread safety: each step of the way says who may use what (push_path.h). Ownership: shared by the executors'
// messages.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/parameter_server.pb.h"
#include "server/shard/part_view.h"
#include "server/shard/shard.h"
#include "server/store/memory_budget.h"
#include "server/store/request_payload.h"
#include "server/store/request_view.h"

namespace lodestone::server {

// One shard's share of a push.
struct ShardPush {
  Shard* shard = nullptr;
  size_t executor = 0;  // The shard's.
  absl::InlinedVector<PartView, 1> parts;
  absl::StatusOr<Shard::PushResult> result = Shard::PushResult{};
  // Where it was asked (push_admission.h): whether the shard has applied it before, and what each part's new rows take.
  bool duplicate = false;
  std::vector<uint64_t> bytes_needed;
  // What it is to the steps of the shard's tables.
  absl::StatusOr<ShardSteps::Judgement> steps = ShardSteps::Judgement{};
};

// The outcome of what one executor has applied of a push in one turn.
struct PushTurn {
  absl::Status log;      // Whether what it applied is durable,
  absl::Status replica;  // and whether followers hold it.
  // Until the end of this turn: for how long the push waited for the executor, and was applied; and when that was.
  struct Times {
    int64_t waited_ns = 0;
    int64_t apply_ns = 0;
    int64_t ended_ns = 0;
  } times;
};

struct PushCall {
  explicit PushCall(MemoryBudget* budget) : room(budget) {}

  int64_t arrived_ns = 0;
  int64_t now_ms = 0;
  uint64_t session_ends = 0;  // Sessions::ends() when the worker's was found.
  v1::PushRequest header;
  RequestPayload payload;
  std::vector<ShardPush> shards;                     // Complete when the call is prepared.
  std::vector<std::vector<ShardPush*>> by_executor;  // Of them; empty for executors without one.
  std::vector<Table*> tables;                        // Distinct.
  std::vector<uint64_t> bytes_at_most;               // By table: what its rows would take if all of them were new.
  bool contributes = false;                          // To steps of tables.
  std::vector<uint64_t> contribution_bytes;          // By table: what is to wait for a step. May lack the last ones.
  std::vector<Table*> counted;                       // Of them, those of which no later message of the push has more.
  absl::Status guards;                               // Their verdict,
  std::vector<GuardedNorm> norms;                    // and what they learn once it is applied.
  MemoryReservation room;                            // For its new rows, until it is applied.
  std::atomic<size_t> executors_left{0};             // That have not asked, or not applied their shares yet.
  std::vector<std::list<PushTurn>> turns;            // By executor, which adds to them.
  std::atomic<size_t> ends_left{0};                  // Of turns, their logs and followers.
  std::function<void(absl::StatusOr<v1::PushResponse>)> done;
};

}  // namespace lodestone::server
