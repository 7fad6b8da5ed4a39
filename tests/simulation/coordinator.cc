#include "tests/simulation/coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "proto/coordinator.pb.h"

namespace lodestone::simulation {
namespace {

constexpr int64_t kSaveUsMin = 500;
constexpr int64_t kSaveUsMax = 20'000;
// As in CoordinatorService.
constexpr int64_t kLooksPerLease = 4;
constexpr int64_t kStallsPerLease = 2;

server::ClusterOptions WithTime(server::ClusterOptions options, const TimeSource* time) {
  options.time = time;
  options.stall_time = time;
  options.first_incarnation = static_cast<Incarnation>(time->NowMs()) << 20;
  return options;
}

}  // namespace

Coordinator::Coordinator(const Options& options, Network* network, Ballot* ballot)
    : options_(options),
      network_(network),
      kernel_(network->kernel()),
      ballot_(ballot),
      time_(kernel_),
      process_(kernel_->process()),
      membership_(WithTime(options.cluster, &time_)),
      looked_ms_(time_.NowMs()) {
  if (!ballot->state.empty()) {
    v1::CoordinatorState state;
    LODESTONE_CHECK(state.ParseFromString(ballot->state));
    saved_ = membership_.changes();
    saved_route_ = membership_.shards().changes();
    LODESTONE_CHECK(membership_.Restore(state).ok());
    saved_epoch_ = membership_.shards().mapped() ? state.epoch() : 0;
    Settle();
  }
  saver_ = Thread([this] { RunSaver(); });
  timer_ = Thread([this] { RunTimer(); });
}

Coordinator::~Coordinator() {
  stopping_ = true;
  kernel_->Notify(this);
  saver_.join();
  timer_.join();
}

bool Coordinator::Leads() const {
  if (!process_->alive || stopping_) return false;
  return !options_.elected || (ballot_->term == options_.term && kernel_->NowUs() < ballot_->leads_until_us);
}

template <typename Response>
Coordinator::Done Coordinator::Finish(const Response& response, const Network::Answer& answer) const {
  return [this, response, answer](const absl::Status& status) {
    if (!Leads()) return answer(absl::UnavailableError("this ps does not serve the coordinator any more"));
    if (!status.ok()) return answer(status);
    answer(response.SerializeAsString());
  };
}

void Coordinator::Tell(bool saved, absl::Status status, const Done& done) {
  if (!status.ok() || saved) return done(status);
  waiting_.push_back(done);
  kernel_->Notify(this);
}

void Coordinator::Join(const std::string& request, const Network::Answer& answer) {
  LogExpired();
  v1::JoinRequest join;
  LODESTONE_CHECK(join.ParseFromString(request));
  const auto response = membership_.Join(join);
  Settle();
  if (!response.ok()) return answer(response.status());
  kernel_->Trace(absl::StrCat("coordinator: joined role=", join.role(), " index=", response->index()));
  Tell(AllSaved(), absl::OkStatus(), Finish(*response, answer));
}

void Coordinator::Heartbeat(const std::string& request, const Network::Answer& answer) {
  v1::HeartbeatRequest beat;
  LODESTONE_CHECK(beat.ParseFromString(request));
  NoticeStall();
  auto response = membership_.Heartbeat(beat);
  Settle();
  if (!response.ok()) return answer(response.status());
  response->set_route_epoch(saved_epoch_);
  const bool waits = beat.leaving() && !AllSaved();
  Tell(!waits, absl::OkStatus(), Finish(*response, answer));
}

void Coordinator::Route(const std::string& request, const Network::Answer& answer) {
  v1::RouteRequest asked;
  LODESTONE_CHECK(asked.ParseFromString(request));
  const auto response = membership_.Route(asked);
  if (!response.ok()) return answer(response.status());
  Tell(AllSaved() || saved_route_ == membership_.shards().changes(), absl::OkStatus(), Finish(*response, answer));
}

void Coordinator::ReportSync(const std::string& request, const Network::Answer& answer) {
  v1::ReportSyncRequest report;
  LODESTONE_CHECK(report.ParseFromString(request));
  LogExpired();
  const auto response = membership_.ReportSync(report);
  Settle();
  if (!response.ok()) return answer(response.status());
  Tell(AllSaved(), absl::OkStatus(), Finish(*response, answer));
}

void Coordinator::Plan(const v1::MoveRequest& request) {
  LogExpired();
  const auto planned = membership_.Move(request);
  kernel_->Trace(absl::StrCat("coordinator: plans ", request.ShortDebugString(), ": ", planned.status().ToString()));
  Settle();
}

void Coordinator::Drain(const v1::DrainRequest& request) {
  LogExpired();
  const auto planned = membership_.Drain(request);
  kernel_->Trace(absl::StrCat("coordinator: drains ", request.ShortDebugString(), ": ", planned.status().ToString()));
  Settle();
}

void Coordinator::NoteGone(Incarnation incarnation) {
  if (!Leads() || !membership_.NoteGone(incarnation, 0)) return;
  LogExpired();
}

void Coordinator::NoticeStall() {
  const int64_t now_ms = time_.NowMs();
  const int64_t gap_ms = now_ms - std::exchange(looked_ms_, now_ms);
  if (gap_ms <= options_.cluster.lease_ms / kStallsPerLease) return;
  membership_.RenewAll();
  kernel_->Trace("coordinator: it stood still, and renews all");
}

void Coordinator::LogExpired() {
  NoticeStall();
  for (const std::string& line : membership_.TakeExpired()) {
    kernel_->Trace(absl::StrCat("coordinator: a lease has ended: ", line));
  }
  Settle();
}

void Coordinator::Settle() {
  for (const std::string& line : membership_.TakeFailovers()) kernel_->Trace(absl::StrCat("coordinator: ", line));
  membership_.TakeEvents();
  if (!AllSaved()) kernel_->Notify(this);
}

void Coordinator::RunTimer() {
  const int64_t pause_ms = std::max<int64_t>(1, options_.cluster.lease_ms / kLooksPerLease);
  while (process_->alive && !stopping_) {
    LogExpired();
    const int64_t next_ms = membership_.members().NextExpiryMs().value_or(Simulation::kNever);
    kernel_->Wait(&looked_ms_, std::max(kernel_->NowMs() + 1, std::min(next_ms, kernel_->NowMs() + pause_ms)));
  }
}

void Coordinator::RunSaver() {
  while (process_->alive && !stopping_) {
    if (AllSaved() && waiting_.empty()) {
      kernel_->Wait(this, kernel_->NowMs() + 100);
      continue;
    }
    std::vector<Done> waiting;
    waiting.swap(waiting_);
    absl::Status status;
    if (!AllSaved()) {
      const uint64_t changes = membership_.changes(), route = membership_.shards().changes();
      const uint64_t epoch = membership_.shards().epoch();
      status = Save(membership_.SaveState().SerializeAsString());
      if (status.ok()) {
        saved_ = changes;
        saved_route_ = route;
        saved_epoch_ = epoch;
      }
    }
    for (const Done& done : waiting) done(status);
  }
}

absl::Status Coordinator::Save(const std::string& state) {
  kernel_->Sleep(kernel_->Between(kSaveUsMin, kSaveUsMax));
  // A process that dies may have had it written, or not.
  if (!process_->alive && !kernel_->Chance(0.5)) return absl::UnavailableError("the process is dead");
  if (options_.elected && ballot_->term != options_.term) {
    return absl::UnavailableError("another one is elected");  // As etcd says of the transaction.
  }
  ballot_->state = state;
  return process_->alive ? absl::OkStatus() : absl::UnavailableError("the process is dead");
}

}  // namespace lodestone::simulation
