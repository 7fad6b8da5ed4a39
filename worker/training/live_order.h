// The order of a worker's steps among those of others, which may change while it trains: psctl set makes the staleness
// of its tables bounded, or lifts that. A worker hears of it with the answer to a push, asks what the settings are, and
// keeps to them from its next step on. Steps that are read ahead by then are as they were.
//
// Orders that have steps (sync, tokens) stay what they are, as samples are leased by them.
//
// Not thread-safe, but for gate(): belongs to the trainer. The client and the tables must outlive it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "proto/table.pb.h"
#include "worker/training/clock_gate.h"

namespace lodestone::worker {

class Client;

class LiveOrder {
 public:
  // `tables`: as the worker has made them. `gate`: but for its staleness.
  LiveOrder(Client* client, const std::vector<v1::TableSpec>& tables, ClockGate::Options gate);

  // What the tables' consistency comes to (StepOrderOf).
  const v1::Consistency& order() const { return order_; }
  // Whether gradients are contributions to steps.
  bool HasSteps() const { return order_.has_sync() || order_.has_tokens(); }
  // Whether a table that the worker has made otherwise divides its learning rate by the delay.
  bool tells_versions() const { return tells_versions_; }
  // In words, for reports; empty: it is async and has always been.
  std::string InWords() const;
  // Null: staleness has never been bounded. Thread-safe.
  std::shared_ptr<ClockGate> gate() const;

  // Takes part in the clocks, if staleness is bounded. Before the first step.
  absl::Status Start();
  // Keeps to what the settings are now, if they have changed. Before each step; cheap if they have not. Errors of the
  // gate's start; servers that do not answer are asked again before the next step.
  absl::Status Follow();

 private:
  absl::Status Use(const v1::Consistency& order);

  Client* const client_;
  const ClockGate::Options gate_options_;
  std::vector<std::string> names_;
  v1::Consistency order_;
  bool tells_versions_ = false;
  uint64_t changes_ = 0;  // Client::SettingsChanges that it keeps to.

  mutable Mutex mu_;
  std::shared_ptr<ClockGate> gate_ ABSL_GUARDED_BY(mu_);  // Shared with the callbacks of pushes.
};

}  // namespace lodestone::worker
