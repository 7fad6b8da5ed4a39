// A client that pushes ones to real ps all the time, on a thread of its own: what is there in the end shows whether an
// acknowledged push was lost, or counted twice.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "common/base/types.h"
#include "tests/cluster/replicas_fixture.h"

namespace lodestone {

class PushingFixture : public ReplicasFixture {
 protected:
  static constexpr Key kKeys = 200;

  void TearDown() override { EndPushing(); }

  // Connects client_, and begins. REQUIRES: StartCluster.
  void StartPushing();
  // Waits until so many more are acknowledged; false if they never are.
  bool AwaitPushes(uint64_t count);
  // Ends the pushing, and compares what is there with what was pushed.
  void ExpectExact();
  // The second half of it.
  void ExpectSums();
  uint64_t acknowledged() const { return acknowledged_; }
  // The longest time between two acknowledgements, in milliseconds.
  int64_t pause_ms_max() const { return pause_ms_max_; }

 private:
  void PushOnes();
  void EndPushing();
  void NoteAcknowledged();

  std::vector<Key> keys_;
  std::atomic<bool> done_{false};
  std::atomic<bool> pusher_ended_{false};
  std::atomic<uint64_t> pushed_{0};
  std::atomic<uint64_t> acknowledged_{0};
  std::atomic<int64_t> acknowledged_ms_{0};  // The last of them.
  std::atomic<int64_t> pause_ms_max_{0};
  std::thread pusher_;
};

}  // namespace lodestone
