// A chaos run: ps processes and clients that push integers, faults by a seeded schedule, and now and then an audit, in
// which everything stands still, all ps are killed once more, and what comes back is compared with what was pushed.
//
// Single-threaded: call Run from the thread that made the object; it starts and ends processes.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/chaos/goodput.h"
#include "tests/chaos/injector.h"
#include "tests/chaos/ledger.h"
#include "tests/chaos/progress.h"
#include "tests/chaos/ps_cluster.h"
#include "tests/chaos/pushing_client.h"
#include "tests/chaos/recorder.h"
#include "tests/chaos/recording_client.h"
#include "tests/chaos/replicas.h"
#include "tests/chaos/report.h"
#include "tests/chaos/schedule.h"
#include "tests/chaos/small_disk.h"
#include "tests/chaos/watch.h"
#include "tests/chaos/worker_turnover.h"
#include "tests/chaos/workload.h"

namespace lodestone::chaos {

struct RunOptions {
  uint64_t seed = 1;
  std::vector<FaultKind> kinds;
  uint64_t faults = 20;       // How many; 0: until another limit is reached.
  double minutes = 0;         // How long; 0: until another limit is reached.
  uint64_t audit_every = 10;  // Faults between two audits.
  uint64_t gap_pushes = 200;
  uint64_t calm_pushes = 1000;  // Before the first fault.
  // Faults at this distance in time, with as long a period without one before and after each; one audit, at the end.
  // 0: faults at a distance in pushes.
  double every_seconds = 0;
  uint32_t servers = 2;
  uint32_t clients = 4;
  uint32_t workers = 0;      // Worker processes at most, which train beside that, and come and go. If not 0, `durable`.
  uint64_t pushes = 0;       // End after so many acknowledged ones; 0: no limit.
  bool digits_only = false;  // Workload::Options::digits_only.
  uint32_t recorders = 0;    // Clients that record histories of counters.
  uint64_t histories = 0;    // End after so many; 0: no limit.
  uint64_t history_operations = 5000;
  std::string history_folder;  // For them; empty: they are judged and not kept.
  bool durable = true;         // The ps have a data_dir.
  bool replicas = false;       // Each shard has a follower: then `durable`, and at least two servers.
  int64_t lease_ms = 1000;     // With followers.
  uint64_t disk_mb = 0;        // It is on a disk of its own (SmallDisk) of this size; 0: it is not.
  std::vector<std::string> sets;
  std::string ps_binary;
  std::string other_ps_binary;  // As PsCluster's.
  std::string worker_binary;    // Of `workers`.
  std::string psctl_binary;     // That changes their order of steps; empty: nothing does.
  std::string folder;           // Exists, and is empty.
  int64_t patience_ms = 90'000;
  // Counted up when the run shall end: once for an end with an audit, once more for one without. May be null.
  const std::atomic<int>* interrupts = nullptr;
  std::function<void(const std::string&)> on_progress;  // Gets a line now and then.
};

class ChaosRun {
 public:
  explicit ChaosRun(RunOptions options);
  ~ChaosRun();

  // Runs, and ends all processes.
  Report Run();

 private:
  absl::Status Start();
  void StartClients();
  void StartWorkers();
  PsCluster::Options ClusterOptions() const;
  absl::Status MountDisk();
  absl::Status Storm();
  absl::Status Calm();
  bool Over() const;
  // What --every-seconds asks for.
  absl::Status StormByTime();
  // A period of it; with a fault at its begin, or without one.
  absl::Status Period(bool with_fault);
  absl::Status InjectNext();
  Fault DrawNext() const;
  // Chooses another client for a death if that of `fault` has died since the last audit; false if all have.
  bool ChooseClient(Fault* fault) const;
  // Inject and what follows from it for the report.
  absl::Status Inject(const Fault& fault, FaultOutcome* outcome);
  // Lets the workers come to the end of their run. Nobody is killed meanwhile.
  absl::Status FinishTraining();
  // Leaves the clients paused.
  absl::Status Audit();
  absl::Status Compare();
  // Has each owner compare its shards with their followers'.
  absl::Status CompareReplicas();
  void CountDuplicates();
  // Takes back what a fault that was not carried to its end has left.
  absl::Status Mend();
  // What can still be found out after a failure.
  absl::Status Autopsy();
  void FillReport(const absl::Status& status);
  absl::Status KillAll();
  absl::Status StopServers();
  absl::Status PauseClients();
  void ResumeClients();
  // Counts the time since ResumeClients as time with faults, once.
  void CountStorm();
  absl::Status Tick();
  std::string DiskFolder() const { return options_.folder + "/disk"; }
  std::string DataDir() const { return disk_ == nullptr ? options_.folder + "/data" : DiskFolder() + "/data"; }
  double SecondsSince(int64_t ms) const { return static_cast<double>(progress_.NowMs() - ms) / 1000; }

  const RunOptions options_;
  Progress progress_;
  Report report_;

  // Made by Start.
  std::unique_ptr<SmallDisk> disk_;  // Null: none.
  std::unique_ptr<PsCluster> cluster_;
  std::unique_ptr<Watch> watch_;
  std::unique_ptr<Replicas> replicas_;
  std::unique_ptr<Workload> workload_;
  std::unique_ptr<Ledger> ledger_;
  PushingClient::Run client_run_;
  std::vector<std::unique_ptr<PushingClient>> clients_;  // By slot.
  std::unique_ptr<Recorder> recorder_;                   // Null: nobody records.
  RecordingClient::Run recording_run_;
  std::vector<std::unique_ptr<RecordingClient>> recorders_;
  std::unique_ptr<WorkerTurnover> turnover_;  // Null: there are no workers.
  std::unique_ptr<Injector> injector_;

  int64_t started_ms_ = 0;
  int64_t told_ms_ = 0;  // When on_progress was last called, and how far things were.
  uint64_t told_pushes_ = 0;
  std::string doing_;
  uint64_t next_fault_ = 0;
  bool clients_must_live_ = true;
  std::vector<bool> died_;  // By slot, since the last audit.
  bool stormy_ = false;     // The time between ResumeClients and CountStorm counts as time with faults.
  bool pushing_ = false;    // It has not been counted yet.
  int64_t resumed_ms_ = 0;
  uint64_t resumed_pushes_ = 0;
  std::vector<GoodputPeriod> periods_;
  double stormy_seconds_ = 0;
  uint64_t stormy_pushes_ = 0;
};

}  // namespace lodestone::chaos
