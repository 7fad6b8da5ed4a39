// A simulated life of the coordinator: a real Membership and its saved state, and what CoordinatorService and
// StateSaver do around it: nothing is answered that is not saved, dead leases are looked for, a stall renews all.
//
// Where it is embedded it ends with ps 0, and its state is a file of that. Where it is elected, the state and the
// election are in a register that stands for etcd (Ballot): it is written only by who is elected, in its term.
//
// Used by one thread; runs on fibers of its process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/simulation.h"
#include "common/base/time_source.h"
#include "proto/admin.pb.h"
#include "proto/coordinator_state.pb.h"
#include "server/coordinator/membership.h"
#include "tests/simulation/network.h"

namespace lodestone::simulation {

// Milliseconds of the kernel's clock.
class KernelTime final : public TimeSource {
 public:
  explicit KernelTime(const Kernel* kernel) : kernel_(kernel) {}
  int64_t NowMs() const override { return kernel_->NowMs(); }

 private:
  const Kernel* const kernel_;
};

// What the coordinator's state is kept in: a file that is replaced as a whole, or etcd.
struct Ballot {
  std::string state;           // Serialized; empty: none was ever saved.
  int64_t term = 0;            // Of the newest election; 0: there was none.
  int64_t leads_until_us = 0;  // When the lease of who was elected ends.
  uint32_t leader = 0;         // The machine.
};

class Coordinator {
 public:
  struct Options {
    server::ClusterOptions cluster;
    bool elected = false;
    int64_t term = 0;  // elected: its term.
  };
  // Begins from the state in `ballot`, or from none. `network` and `ballot` must outlive it. Call on its process.
  Coordinator(const Options& options, Network* network, Ballot* ballot);
  // Waits for its threads. REQUIRES: its process is dead, or Stop was called.
  ~Coordinator();

  // The calls; `answer` gets the serialized response.
  void Join(const std::string& request, const Network::Answer& answer);
  void Heartbeat(const std::string& request, const Network::Answer& answer);
  void Route(const std::string& request, const Network::Answer& answer);
  void ReportSync(const std::string& request, const Network::Answer& answer);
  // An operator plans moves, or has a ps drained or not.
  void Plan(const v1::MoveRequest& request);
  void Drain(const v1::DrainRequest& request);
  // The process of a ps was found dead.
  void NoteGone(Incarnation incarnation);

  void Stop() { stopping_ = true; }
  // Whether it may still answer.
  bool Leads() const;
  const server::Membership& membership() const { return membership_; }
  // What is saved of the map.
  bool AllSaved() const { return saved_ == membership_.changes(); }

 private:
  using Done = std::function<void(const absl::Status&)>;

  void RunSaver();
  void RunTimer();
  absl::Status Save(const std::string& state);
  void LogExpired();
  void NoticeStall();
  void Settle();
  // Calls `done` when all is saved, or `saved` is true already.
  void Tell(bool saved, absl::Status status, const Done& done);
  template <typename Response>
  Done Finish(const Response& response, const Network::Answer& answer) const;

  const Options options_;
  Network* const network_;
  Kernel* const kernel_;
  Ballot* const ballot_;
  const KernelTime time_;
  const ProcessRef process_;
  server::Membership membership_;
  int64_t looked_ms_;
  uint64_t saved_ = 0;
  uint64_t saved_route_ = 0;
  uint64_t saved_epoch_ = 0;
  std::vector<Done> waiting_;
  bool stopping_ = false;
  Thread saver_, timer_;
};

}  // namespace lodestone::simulation
