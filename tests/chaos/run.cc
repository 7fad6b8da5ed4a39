#include "tests/chaos/run.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/wire/shard_map.h"
#include "tests/chaos/inventory.h"

namespace lodestone::chaos {
namespace {

constexpr int64_t kTellEveryMs = 5'000;
constexpr int kAuditCallTimeoutMs = 20'000;
constexpr int kRunStatusTimeoutMs = 5'000;

}  // namespace

ChaosRun::ChaosRun(RunOptions options) : options_(std::move(options)) {}

ChaosRun::~ChaosRun() = default;

Report ChaosRun::Run() {
  started_ms_ = told_ms_ = progress_.NowMs();
  report_.seed = options_.seed;
  report_.replicas = options_.replicas;
  absl::Status status = Start();
  if (status.ok()) status = Storm();
  if (absl::IsCancelled(status)) {
    report_.stopped = true;
    status = Mend();
    if (status.ok()) status = Audit();
  }
  FillReport(status);
  if (status.ok()) {
    clients_.clear();
    recorders_.clear();
    status = StopServers();
    if (!status.ok()) report_.failure = status.ToString();
  } else if (!absl::IsCancelled(status) && cluster_ != nullptr) {
    status = Autopsy();
    if (!status.ok()) absl::StrAppend(&report_.failure, "; and then, nothing could be compared: ", status.ToString());
  }
  clients_.clear();
  recorders_.clear();
  if (recorder_ != nullptr) report_.judgement = recorder_->Conclude();
  turnover_.reset();  // While there is a cluster to count from.
  cluster_.reset();
  if (disk_ != nullptr && !report_.ok()) {  // What is on it would go with it.
    std::error_code ignored;
    std::filesystem::copy(DataDir(), options_.folder + "/data", std::filesystem::copy_options::recursive, ignored);
  }
  report_.seconds = SecondsSince(started_ms_);
  return report_;
}

void ChaosRun::FillReport(const absl::Status& status) {
  clients_must_live_ = false;
  if (!status.ok()) report_.failure = status.ToString();
  report_.acknowledged = progress_.acknowledged();
  if (turnover_ != nullptr) report_.turnover = turnover_->report();
  report_.goodput_every_seconds = options_.every_seconds;
  report_.goodput = ComputeShares(periods_);
  report_.pause_seconds_max = static_cast<double>(progress_.pause_ms_max()) / 1000;
  if (stormy_seconds_ > 0) report_.stormy_pushes_per_second = static_cast<double>(stormy_pushes_) / stormy_seconds_;
}

PsCluster::Options ChaosRun::ClusterOptions() const {
  PsCluster::Options options;
  options.ps_binary = options_.ps_binary;
  options.other_ps_binary = options_.other_ps_binary;
  options.folder = options_.folder;
  if (options_.durable) options.data_dir = DataDir();
  options.own_disks = options_.replicas;
  options.servers = options_.servers;
  if (options_.replicas) {
    options.sets = {"cluster.replicas=2", absl::StrCat("coordinator.lease_ms=", options_.lease_ms)};
  }
  options.sets.insert(options.sets.end(), options_.sets.begin(), options_.sets.end());
  return options;
}

absl::Status ChaosRun::Start() {
  LODESTONE_RETURN_IF_ERROR(MountDisk());
  LODESTONE_ASSIGN_OR_RETURN(cluster_, PsCluster::Create(ClusterOptions()));
  report_.lease_ms = cluster_->config().coordinator().lease_ms();
  watch_ = std::make_unique<Watch>(cluster_.get(), Watch::Options{.patience_ms = options_.patience_ms,
                                                                  .interrupts = options_.interrupts,
                                                                  .on_tick = [this] { return Tick(); }});
  const uint32_t shards = cluster_->config().cluster().shards();
  replicas_ = std::make_unique<Replicas>(cluster_.get(), shards);
  const std::vector<uint32_t> owners = InitialOwners(shards, options_.servers);
  workload_ = std::make_unique<Workload>(Workload::Options{.seed = options_.seed,
                                                           .slots = options_.clients,
                                                           .shards = shards,
                                                           .owners = owners,
                                                           .digits_only = options_.digits_only});
  ledger_ = std::make_unique<Ledger>(workload_.get(), /*others_push=*/options_.workers > 0);
  for (uint32_t server = 0; server < options_.servers; ++server) LODESTONE_RETURN_IF_ERROR(cluster_->Start(server));
  StartClients();
  StartWorkers();
  injector_ = std::make_unique<Injector>(Injector::Scene{.cluster = cluster_.get(),
                                                         .watch = watch_.get(),
                                                         .progress = &progress_,
                                                         .clients = &clients_,
                                                         .disk = disk_.get(),
                                                         .replicas = replicas_.get(),
                                                         .lease_ms = cluster_->config().coordinator().lease_ms()},
                                         owners);
  LODESTONE_RETURN_IF_ERROR(watch_->Await(
      [this] {
        const auto connected = [](const auto& client) { return client->connected(); };
        return std::all_of(clients_.begin(), clients_.end(), connected) &&
               std::all_of(recorders_.begin(), recorders_.end(), connected);
      },
      "the clients' connections"));
  return options_.replicas ? injector_->AwaitInSync() : absl::OkStatus();
}

void ChaosRun::StartClients() {
  v1::Config config = cluster_->config();
  // Beside workers: that they have no samples, and so do not keep an operator from changing the order of steps.
  if (options_.workers > 0) config.mutable_train()->set_sharing(v1::TrainConfig::RANGES);
  client_run_ = {.config = config, .workload = workload_.get(), .ledger = ledger_.get(), .progress = &progress_};
  for (uint32_t slot = 0; slot < options_.clients; ++slot) {
    clients_.push_back(std::make_unique<PushingClient>(&client_run_, slot));
  }
  died_.assign(options_.clients, false);
  if (options_.recorders == 0) return;
  recorder_ = std::make_unique<Recorder>(Recorder::Options{.seed = options_.seed,
                                                           .shards = workload_->shards(),
                                                           .clients = options_.recorders,
                                                           .operations = options_.history_operations,
                                                           .folder = options_.history_folder});
  recording_run_ = {
      .config = config, .slots = options_.recorders, .recorder = recorder_.get(), .ledger = ledger_.get()};
  for (uint32_t slot = 0; slot < options_.recorders; ++slot) {
    recorders_.push_back(std::make_unique<RecordingClient>(&recording_run_, slot));
  }
}

void ChaosRun::StartWorkers() {
  if (options_.workers == 0) return;
  WorkerTurnover::Options turnover{.seed = options_.seed, .workers_max = options_.workers};
  turnover.training.worker_binary = options_.worker_binary;
  turnover.psctl_binary = options_.psctl_binary;
  turnover.training.folder = options_.folder;
  turnover.training.sets = {
      absl::StrCat("worker.retry_timeout_ms=", cluster_->config().worker().retry_timeout_ms()),
      absl::StrCat("coordinator.join_timeout_ms=", cluster_->config().coordinator().join_timeout_ms())};
  turnover_ = std::make_unique<WorkerTurnover>(cluster_.get(), turnover);
}

absl::Status ChaosRun::MountDisk() {
  if (options_.disk_mb == 0) return absl::OkStatus();
  std::filesystem::create_directories(DiskFolder());
  LODESTONE_ASSIGN_OR_RETURN(disk_, SmallDisk::Mount(DiskFolder(), options_.disk_mb));
  return absl::OkStatus();
}

absl::Status ChaosRun::Calm() {
  doing_ = "no faults yet";
  ResumeClients();
  const int64_t begun_ms = progress_.NowMs();
  LODESTONE_RETURN_IF_ERROR(watch_->Await([this] { return progress_.acknowledged() >= options_.calm_pushes; },
                                          "the pushes before the first fault"));
  report_.calm_pushes_per_second =
      static_cast<double>(progress_.acknowledged()) / std::max(SecondsSince(begun_ms), 0.001);
  resumed_ms_ = progress_.NowMs();
  resumed_pushes_ = progress_.acknowledged();
  stormy_ = true;
  return absl::OkStatus();
}

bool ChaosRun::Over() const {
  if (options_.faults > 0 && next_fault_ >= options_.faults) return true;
  if (options_.pushes > 0 && progress_.acknowledged() >= options_.pushes) return true;
  if (options_.histories > 0 && recorder_->finished() >= options_.histories) return true;
  return options_.minutes > 0 && SecondsSince(started_ms_) >= options_.minutes * 60;
}

absl::Status ChaosRun::Storm() {
  LODESTONE_RETURN_IF_ERROR(Calm());
  if (options_.every_seconds > 0) return StormByTime();
  bool audited = false;
  while (!Over()) {
    LODESTONE_RETURN_IF_ERROR(InjectNext());
    audited = next_fault_ % options_.audit_every == 0;
    if (audited) LODESTONE_RETURN_IF_ERROR(Audit());
    if (audited && !Over()) ResumeClients();
  }
  if (audited && turnover_ == nullptr) return absl::OkStatus();
  LODESTONE_RETURN_IF_ERROR(FinishTraining());
  return Audit();
}

absl::Status ChaosRun::FinishTraining() {
  if (turnover_ == nullptr) return absl::OkStatus();
  doing_ = "the end of the workers' run";
  CountStorm();
  turnover_->Resume();
  turnover_->Finish();
  while (!turnover_->finished()) {  // For as long as there is progress.
    const uint64_t done = turnover_->done();
    LODESTONE_RETURN_IF_ERROR(
        watch_->Await([&] { return turnover_->finished() || turnover_->done() != done; }, doing_));
  }
  return absl::OkStatus();
}

bool ChaosRun::ChooseClient(Fault* fault) const {
  for (uint32_t i = 0; i < options_.clients; ++i) {
    const uint32_t slot = (fault->client + i) % options_.clients;
    if (died_[slot]) continue;
    fault->client = slot;
    return true;
  }
  return false;
}

Fault ChaosRun::DrawNext() const {
  const ScheduleOptions schedule{.seed = options_.seed,
                                 .kinds = options_.kinds,
                                 .servers = options_.servers,
                                 .clients = options_.clients,
                                 .lease_ms = cluster_->config().coordinator().lease_ms(),
                                 .gap_pushes = options_.gap_pushes};
  return DrawFault(schedule, next_fault_);
}

absl::Status ChaosRun::InjectNext() {
  Fault fault = DrawNext();
  doing_ = "before " + fault.Describe();
  const uint64_t due = progress_.acknowledged() + fault.after_pushes;
  LODESTONE_RETURN_IF_ERROR(watch_->Await([&] { return progress_.acknowledged() >= due; }, "acknowledgements"));
  if (fault.kind == FaultKind::kClient) {
    // The receipts of a client's last pushes must be read before another client of the slot leaves some.
    if (!ChooseClient(&fault)) {
      LODESTONE_RETURN_IF_ERROR(Audit());
      ResumeClients();
    }
    died_[fault.client] = true;
  }
  FaultOutcome outcome;
  return Inject(fault, &outcome);
}

absl::Status ChaosRun::Period(bool with_fault) {
  const int64_t begun_ms = progress_.NowMs(), until_ms = begun_ms + static_cast<int64_t>(options_.every_seconds * 1000);
  const uint64_t before = progress_.acknowledged();
  GoodputPeriod period;
  if (with_fault) {
    FaultOutcome outcome;
    LODESTONE_RETURN_IF_ERROR(Inject(DrawNext(), &outcome));
    period.recovery_seconds = static_cast<double>(outcome.recovery_ms) / 1000;
    period.recovery_pushes = outcome.recovered_pushes - before;
  }
  doing_ = with_fault ? "after a fault" : "without faults";
  LODESTONE_RETURN_IF_ERROR(watch_->Pass(std::max<int64_t>(until_ms - progress_.NowMs(), 0)));
  period.pushes = progress_.acknowledged() - before;
  period.seconds = SecondsSince(begun_ms);
  periods_.push_back(period);
  return absl::OkStatus();
}

absl::Status ChaosRun::StormByTime() {
  LODESTONE_RETURN_IF_ERROR(Period(/*with_fault=*/false));
  while (!Over()) {
    LODESTONE_RETURN_IF_ERROR(Period(/*with_fault=*/true));
    LODESTONE_RETURN_IF_ERROR(Period(/*with_fault=*/false));
  }
  LODESTONE_RETURN_IF_ERROR(FinishTraining());
  return Audit();
}

absl::Status ChaosRun::Inject(const Fault& fault, FaultOutcome* outcome) {
  doing_ = fault.Describe();
  ++next_fault_;
  report_.schedule.push_back(absl::StrFormat("%8.3f s, %d acknowledged: %s", SecondsSince(started_ms_),
                                             progress_.acknowledged(), fault.Describe()));
  const size_t mark =
      recorder_ == nullptr ? 0 : recorder_->BeginFault(fault.Describe(), TakesBack(fault.kind, options_.replicas));
  const absl::Status status = injector_->Inject(fault, outcome);
  if (recorder_ != nullptr) recorder_->EndFault(mark);
  std::string* const line = &report_.schedule.back();
  if (!outcome->note.empty()) absl::StrAppend(line, "; ", outcome->note);
  if (!status.ok()) {
    absl::StrAppend(line, "; failed");
    return status;
  }
  if (outcome->outage_ms.has_value()) {
    report_.outages_ms[fault.kind].push_back(static_cast<double>(*outcome->outage_ms));
  }
  report_.kept_disks += outcome->kept;
  if (outcome->carried_out) {
    absl::StrAppend(line, "; recovered in ", outcome->recovery_ms, " ms");
    report_.recoveries_ms[fault.kind].push_back(static_cast<double>(outcome->recovery_ms));
  } else {
    ++report_.impossible[fault.kind];
    absl::StrAppend(line, "; not possible");
  }
  return status;
}

absl::Status ChaosRun::KillAll() {
  const size_t mark = recorder_ == nullptr ? 0 : recorder_->BeginFault("audit", true);
  const absl::Status status = injector_->KillAll(0);
  if (recorder_ != nullptr) recorder_->EndFault(mark);
  return status;
}

void ChaosRun::ResumeClients() {
  pushing_ = true;
  progress_.Begin();
  resumed_ms_ = progress_.NowMs();
  resumed_pushes_ = progress_.acknowledged();
  for (const auto& client : clients_) client->Resume();
  for (const auto& client : recorders_) client->Resume();
  if (turnover_ != nullptr) turnover_->Resume();
}

void ChaosRun::CountStorm() {
  if (!std::exchange(pushing_, false) || !stormy_) return;
  stormy_seconds_ += SecondsSince(resumed_ms_);
  stormy_pushes_ += progress_.acknowledged() - resumed_pushes_;
}

absl::Status ChaosRun::PauseClients() {
  for (const auto& client : clients_) client->Pause();
  for (const auto& client : recorders_) client->Pause();
  if (turnover_ != nullptr) turnover_->Pause();
  const absl::Status status = watch_->Await(
      [this] {
        return (turnover_ == nullptr || turnover_->idle()) &&
               std::all_of(clients_.begin(), clients_.end(),
                           [](const auto& client) { return client->in_flight() == 0; }) &&
               std::all_of(recorders_.begin(), recorders_.end(), [](const auto& client) { return client->idle(); });
      },
      "the answers to all pushes");
  progress_.End();
  CountStorm();
  return status;
}

absl::Status ChaosRun::Audit() {
  doing_ = "audit";
  cluster_->SetLinks({});
  if (options_.replicas) LODESTONE_RETURN_IF_ERROR(CompareReplicas());  // While pushes go on.
  LODESTONE_RETURN_IF_ERROR(PauseClients());
  CountDuplicates();
  if (options_.replicas) LODESTONE_RETURN_IF_ERROR(CompareReplicas());
  if (options_.durable) {
    LODESTONE_RETURN_IF_ERROR(KillAll());
  } else {
    for (uint32_t server = 0; server < options_.servers; ++server) cluster_->ProxyOf(server)->Cut();
  }
  LODESTONE_RETURN_IF_ERROR(Compare());
  std::fill(died_.begin(), died_.end(), false);
  return report_.verdict.ok() ? absl::OkStatus() : absl::DataLossError("the servers do not hold what was pushed");
}

void ChaosRun::CountDuplicates() {
  uint64_t duplicates = 0;
  for (uint32_t server = 0; server < options_.servers; ++server) {
    const auto status = cluster_->StatusOf(server, kRunStatusTimeoutMs);
    if (status.ok()) duplicates += status->server().pushes_duplicate();
  }
  // Ps that are killed in every audit count from there.
  report_.duplicates = options_.durable ? report_.duplicates + duplicates : duplicates;
}

absl::Status ChaosRun::Compare() {
  v1::Config config = cluster_->config();
  config.mutable_coordinator()->set_join_timeout_ms(static_cast<uint32_t>(options_.patience_ms));
  config.mutable_worker()->set_retry_timeout_ms(static_cast<uint32_t>(options_.patience_ms));
  config.mutable_worker()->set_call_timeout_ms(kAuditCallTimeoutMs);
  Inventory inventory(config, workload_.get(), *ledger_);
  LODESTONE_RETURN_IF_ERROR(watch_->Await([&] { return inventory.done(); }, "the values of all tables"));
  LODESTONE_ASSIGN_OR_RETURN(const Held held, inventory.Take());
  report_.verdict.Add(ledger_->Check(held));
  ++report_.audits;
  return absl::OkStatus();
}

absl::Status ChaosRun::CompareReplicas() {
  Replicas::Comparison comparison;
  do {  // A follower may be lost meanwhile, if the machine is busy.
    LODESTONE_RETURN_IF_ERROR(injector_->AwaitInSync());
    auto answer = std::async(std::launch::async, Replicas::Verify, replicas_->Ports());
    LODESTONE_RETURN_IF_ERROR(watch_->Await(
        [&] { return answer.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }, "replicas' checksums"));
    LODESTONE_ASSIGN_OR_RETURN(comparison, answer.get());
    report_.replicas_same += comparison.same;
    report_.replicas_differ += comparison.different.size();
    if (!comparison.different.empty()) return absl::DataLossError(absl::StrJoin(comparison.different, "; "));
  } while (!comparison.missing.empty());
  return absl::OkStatus();
}

absl::Status ChaosRun::Mend() {
  watch_->TakeInterrupts();
  cluster_->TakeDeaths();
  cluster_->SetLinks({});
  cluster_->ClearBetween();
  if (disk_ != nullptr) LODESTONE_RETURN_IF_ERROR(disk_->Free());
  for (uint32_t server = 0; server < options_.servers; ++server) {
    if (!cluster_->Runs(server)) LODESTONE_RETURN_IF_ERROR(cluster_->Start(server));
  }
  return absl::OkStatus();
}

absl::Status ChaosRun::Autopsy() {
  doing_ = "autopsy";
  if (!report_.verdict.ok()) return absl::OkStatus();  // It is known already.
  turnover_.reset();                                   // What is compared is read until it stays as it is.
  clients_.clear();
  recorders_.clear();
  LODESTONE_RETURN_IF_ERROR(Mend());
  return Compare();
}

absl::Status ChaosRun::StopServers() {
  doing_ = "the end";
  for (uint32_t server = 0; server < options_.servers; ++server) cluster_->Terminate(server);
  for (uint32_t server = 0; server < options_.servers; ++server) {
    LODESTONE_RETURN_IF_ERROR(
        watch_->Await([&] { return !cluster_->Runs(server); }, absl::StrCat("the orderly end of ps ", server)));
    if (cluster_->OutcomeOf(server) != "ended") {
      return absl::InternalError(absl::StrCat("ps ", server, " ", cluster_->OutcomeOf(server)));
    }
  }
  return absl::OkStatus();
}

absl::Status ChaosRun::Tick() {
  const int64_t now_ms = progress_.NowMs();
  if (options_.on_progress && now_ms - told_ms_ >= kTellEveryMs) {
    const uint64_t pushes = progress_.acknowledged();
    const double rate = static_cast<double>(pushes - told_pushes_) * 1000 / static_cast<double>(now_ms - told_ms_);
    options_.on_progress(
        absl::StrFormat("%6.0f s  %d faults  %d pushes acknowledged (%.0f/s)  %d audits  now: %s",
                        SecondsSince(started_ms_), report_.faults(), pushes, rate, report_.audits,
                        turnover_ == nullptr ? doing_ : absl::StrCat(doing_, "; ", turnover_->Describe())));
    told_ms_ = now_ms;
    told_pushes_ = pushes;
  }
  if (!clients_must_live_) return absl::OkStatus();
  for (const auto& client : clients_) LODESTONE_RETURN_IF_ERROR(client->failure());
  for (const auto& client : recorders_) LODESTONE_RETURN_IF_ERROR(client->failure());
  return turnover_ == nullptr ? absl::OkStatus() : turnover_->Tick();
}

}  // namespace lodestone::chaos
