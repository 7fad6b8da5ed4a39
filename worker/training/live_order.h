// The order of a worker's steps among those of others, which may change while it trains: psctl set makes the staleness
// of its tables bounded, or lifts that. The answer to a push says that settings have changed; a thread of this object's
// asks what they are, and the next step keeps to them. Steps that are read ahead by then are as they were. While the
// worker waits for others, or for samples, it has no pushes whose answers could tell, and asks now and then.
//
// Orders that have steps (sync, tokens) stay what they are while a worker trains, as samples are leased by them:
// workers pause for such a change (RangeFeed), and begin another object of this class then.
//
// Thread-safe, but for Start and Stop. The client must outlive it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/types.h"
#include "proto/coordinator.pb.h"
#include "proto/table.pb.h"
#include "worker/training/clock_gate.h"

namespace lodestone::worker {

class Client;

class LiveOrder {
 public:
  // `tables`: as the worker has made them; others may know of `steps` steps of it. `gate`: but for its staleness and
  // what it has reached.
  LiveOrder(Client* client, const std::vector<v1::TableSpec>& tables, uint64_t steps, ClockGate::Options gate);
  ~LiveOrder();

  // What the tables' consistency came to (StepOrderOf) when the worker began. Of sync and tokens that is what it is.
  const v1::Consistency& first() const { return first_; }
  // Whether gradients are contributions to steps.
  bool HasSteps() const { return first_.has_sync() || first_.has_tokens(); }
  // Whether a table divides its learning rate by the delay since settings have changed.
  bool tells_versions() const { return tells_versions_.load(std::memory_order_relaxed); }
  // What it is now, in words, and what has been observed of it; of async that has always been nothing.
  v1::ConsistencyProgress Observed() const;
  // Null: staleness has never been bounded. Another one once it is bounded again.
  std::shared_ptr<ClockGate> gate() const;

  // Takes part in the clocks, if staleness is bounded. Before the first step; call it once.
  absl::Status Start();
  // A step begins, the one of this number: has the thread ask if settings have changed. Cheap. The error of a gate that
  // could not be started.
  absl::Status BeginStep(uint64_t step);
  // The clock that the next step leads to, once it may read what it is computed from, as ClockGate::Await; nullopt: it
  // has to be the last. 0 where staleness has never been bounded.
  absl::StatusOr<std::optional<Clock>> Await();
  // The worker waits for samples, or has got them.
  void SetIdle(bool idle);
  // Ends Await and the thread. It may have to wait for the answer of a server.
  void Stop();

 private:
  void Run();
  // Keeps to what the settings are now. UNAVAILABLE and others: they are not known.
  absl::Status Follow();
  absl::Status Use(const v1::Consistency& order);
  absl::Status StartGate(uint32_t staleness);

  Client* const client_;
  const ClockGate::Options gate_options_;
  const v1::Consistency first_;
  std::vector<std::string> names_;
  std::atomic<bool> tells_versions_{false};
  std::atomic<uint64_t> changes_{0};  // Client::SettingsChanges that it keeps to.

  mutable Mutex mu_;
  CondVar changed_;
  v1::Consistency now_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<ClockGate> gate_ ABSL_GUARDED_BY(mu_);  // Shared with the callbacks of pushes.
  double waited_seconds_ ABSL_GUARDED_BY(mu_) = 0;        // In former gates.
  uint64_t step_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t waiting_ ABSL_GUARDED_BY(mu_) = 0;  // Calls that wait for others, or for samples.
  bool idle_ ABSL_GUARDED_BY(mu_) = false;
  bool asks_ ABSL_GUARDED_BY(mu_) = false;  // The thread is to ask at once.
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;
};

}  // namespace lodestone::worker
