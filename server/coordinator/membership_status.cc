// The part of Membership that others look at: what processes say of themselves, how it goes, and what has happened.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/numbers_text.h"
#include "common/base/utf8.h"
#include "server/coordinator/membership.h"
#include "server/monitoring/event_log.h"

namespace lodestone::server {
namespace {

constexpr size_t kTextBytesMax = 1024;  // Of any text that a process tells about itself.
constexpr size_t kMetricNameBytesMax = 32;
constexpr int64_t kRateWindowMs = 5000;
constexpr int64_t kRateStepMs = 250;  // Closer observations replace each other.
constexpr size_t kShardRunsMax = 32;  // Of shards that moved, named in one event.

std::string ShortName(v1::Role role, uint32_t index) {
  return absl::StrCat(role == v1::ROLE_SERVER ? "ps " : "worker ", index);
}

std::string Bounded(const std::string& text) { return std::string(Utf8Prefix(text, kTextBytesMax)); }

// The mean of the workers' metric. One cluster trains one model, so that all have the same; if not, the first one's.
class MetricMean {
 public:
  // Of one that trains.
  void Add(const v1::WorkerProgress& progress) {
    if (progress.metric_name().empty()) return;  // It has none yet, or is of a version that knows of none.
    if (count_ == 0) name_ = progress.metric_name();
    if (progress.metric_name() != name_) return;
    sum_ += progress.metric();
    ++count_;
  }
  void Tell(v1::HistoryPoint* point) const {
    if (count_ == 0) return;
    point->set_metric_name(name_);
    point->set_metric(sum_ / count_);
  }

 private:
  std::string name_;
  double sum_ = 0;
  uint32_t count_ = 0;
};

}  // namespace

bool Membership::IsServer(Incarnation incarnation) const {
  const auto found = by_incarnation_.find(incarnation);
  return found != by_incarnation_.end() && found->second->role == v1::ROLE_SERVER;
}

void Membership::RecordProgress(Place* place, const v1::WorkerProgress& progress) {
  place->progress = progress;
  place->progress.set_waiting_for(Bounded(progress.waiting_for()));
  place->progress.DiscardUnknownFields();
  place->progress.set_metric_name(std::string(Utf8Prefix(progress.metric_name(), kMetricNameBytesMax)));
  if (progress.metric_name().empty() || !std::isfinite(progress.metric())) {  // Neither is a metric.
    place->progress.clear_metric_name();
    place->progress.clear_metric();
  }
  const int64_t now_ms = options_.time->NowMs();
  auto& samples = place->samples;
  if (samples.size() >= 2 && now_ms - samples[samples.size() - 2].first < kRateStepMs) samples.pop_back();
  samples.emplace_back(now_ms, progress.samples());
  while (samples.size() > 2 && samples[1].first <= now_ms - kRateWindowMs) samples.pop_front();
}

void Membership::RecordServer(Place* place, const v1::HeartbeatRequest& request) {
  if (request.has_server()) {
    place->server = request.server();
    place->server.set_http(Bounded(request.server().http()));
    place->server.DiscardUnknownFields();
  }
  size_t left = limits::kHeartbeatEventsMax;
  for (const v1::Event& told : request.events()) {
    if (left-- == 0) break;
    // Times of a process's events grow: these came with a heartbeat whose answer was lost.
    if (told.time_ms() <= place->event_ms) continue;
    place->event_ms = told.time_ms();
    v1::Event event = told;
    event.clear_id();
    event.DiscardUnknownFields();
    // A ps knows workers by their incarnations only.
    const auto found = by_incarnation_.find(IncarnationNamed(told.who()));
    if (found != by_incarnation_.end()) event.set_who(ShortName(found->second->role, found->second->index));
    events_.push_back(std::move(event));
  }
}

void Membership::Note(absl::string_view kind, const Place& place, std::string text) {
  v1::Event event;
  event.set_time_ms(static_cast<uint64_t>(std::max<int64_t>(0, options_.time->NowMs())));
  event.set_kind(std::string(kind));
  event.set_who(ShortName(place.role, place.index));
  event.set_text(std::move(text));
  events_.push_back(std::move(event));
}

void Membership::NoteMoved(uint32_t from, uint32_t to, const std::vector<ShardId>& moved) {
  const absl::string_view shards = moved.size() == 1 ? "shard " : "shards ";
  Note("moved", servers_[from], absl::StrCat(shards, NumbersText(moved, kShardRunsMax), " to ps ", to));
}

double Membership::SamplesPerSecond(const Place& place) const {
  if (!Alive(place) || place.samples.size() < 2) return 0;
  const auto& [first_ms, first] = place.samples.front();
  const auto& [last_ms, last] = place.samples.back();
  if (last_ms <= first_ms || last < first) return 0;
  return static_cast<double>(last - first) * 1000.0 / static_cast<double>(last_ms - first_ms);
}

bool Membership::Works(const Place& worker) const {
  return Alive(worker) && !worker.silent && worker.progress.phase() != v1::PHASE_FINISHED;
}

bool Membership::Works() const {
  return std::any_of(workers_.begin(), workers_.end(), [this](const Place& worker) { return Works(worker); });
}

Moment Membership::Now() const {
  Moment moment;
  v1::HistoryPoint& point = moment.point;
  uint32_t training = 0;
  double loss = 0, staleness = 0;
  MetricMean metric;
  for (const Place& worker : workers_) {
    point.set_samples(point.samples() + worker.progress.samples());
    point.set_samples_per_second(point.samples_per_second() + SamplesPerSecond(worker));
    if (!Works(worker)) continue;
    point.set_workers(point.workers() + 1);
    if (worker.progress.phase() != v1::PHASE_TRAINING || worker.progress.clock() == 0) continue;
    ++training;
    loss += worker.progress.loss();
    staleness += worker.progress.staleness_pushes();
    metric.Add(worker.progress);
  }
  for (const Place& server : servers_) {
    if (Alive(server)) point.set_pushes_per_second(point.pushes_per_second() + server.server.pushes_per_second());
  }
  if (training == 0) return moment;
  moment.trains = true;
  point.set_loss(static_cast<float>(loss / training));
  point.set_staleness_pushes(static_cast<float>(staleness / training));
  metric.Tell(&point);
  return moment;
}

v1::MemberStatus Membership::StatusOf(const Place& place) const {
  v1::MemberStatus status;
  status.set_index(place.index);
  status.set_incarnation(place.incarnation);
  status.set_peer(place.role == v1::ROLE_SERVER ? place.address : place.peer);
  status.set_last_contact_seconds(SecondsSinceContact(place));
  status.set_alive(Alive(place));
  status.set_left(place.left);
  if (place.role == v1::ROLE_SERVER) {
    *status.mutable_server() = place.server;
  } else {
    *status.mutable_progress() = place.progress;
    status.set_samples_per_second(SamplesPerSecond(place));
  }
  return status;
}

v1::ClusterStatus Membership::Status() const {
  v1::ClusterStatus status;
  status.set_name(options_.cluster);
  status.set_route_epoch(epoch_);
  status.set_servers_expected(options_.servers);
  status.set_replicas(options_.replicas);
  status.set_shards_in_sync(std::count(in_sync_.begin(), in_sync_.end(), true));
  std::vector<uint32_t> owned(servers_.size()), following(servers_.size());
  for (ShardId shard = 0; mapped_ && shard < options_.shards; ++shard) {
    ++owned[owners_[shard]];
    if (HasFollowers() && followers_[shard] > 0) ++following[followers_[shard] - 1];
  }
  for (const Place& place : servers_) {
    if (place.incarnation == 0) continue;
    v1::MemberStatus* const server = status.add_servers();
    *server = StatusOf(place);
    server->set_shards_owned(owned[place.index]);
    server->set_shards_following(following[place.index]);
  }
  for (const Place& place : workers_) {
    if (place.incarnation != 0) *status.add_workers() = StatusOf(place);
  }
  return status;
}

}  // namespace lodestone::server
