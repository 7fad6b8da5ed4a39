#include "server/coordinator/cluster_status.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "server/coordinator/unserved_shards.h"
#include "server/coordinator/zones.h"

namespace lodestone::server {
namespace {

// The mean of the workers' metric. One cluster trains one model, so that all have the same; if not, the first one's.
class MetricMean {
 public:
  // Adds that of a worker that trains.
  void Add(const v1::WorkerProgress& progress) {
    if (progress.metric_name().empty()) return;  // It has none yet, or is of a version that knows of none.
    if (count_ == 0) name_ = progress.metric_name();
    if (progress.metric_name() != name_) return;
    sum_ += progress.metric();
    ++count_;
  }
  void Set(v1::HistoryPoint* point) const {
    if (count_ == 0) return;
    point->set_metric_name(name_);
    point->set_metric(sum_ / count_);
  }

 private:
  std::string name_;
  double sum_ = 0;
  uint32_t count_ = 0;
};

double SamplesPerSecond(const MemberTable& members, const MemberPlace& place) {
  if (!members.Alive(place) || place.samples.size() < 2) return 0;
  const auto& [first_ms, first] = place.samples.front();
  const auto& [last_ms, last] = place.samples.back();
  if (last_ms <= first_ms || last < first) return 0;
  return static_cast<double>(last - first) * 1000.0 / static_cast<double>(last_ms - first_ms);
}

// What the time of the last seconds went by, in seconds per second.
void FillStages(const MemberTable& members, const MemberPlace& place, v1::MemberStatus* status) {
  if (!members.Alive(place) || place.stages.size() < 2) return;
  const auto& [first_ms, first] = place.stages.front();
  const auto& [last_ms, last] = place.stages.back();
  if (last_ms <= first_ms || first.size() != last.size()) return;
  for (int i = 0; i < last.size(); ++i) {
    v1::StageTime* const stage = status->add_stages();
    stage->set_stage(last[i].stage());
    stage->set_seconds(std::max(0.0, last[i].seconds() - first[i].seconds()) * 1000.0 /
                       static_cast<double>(last_ms - first_ms));
  }
}

bool Works(const MemberTable& members, const MemberPlace& worker) {
  return members.Alive(worker) && !worker.silent && worker.progress.phase() != v1::PHASE_FINISHED;
}

v1::MemberStatus StatusOf(const MemberTable& members, const MemberPlace& place) {
  v1::MemberStatus status;
  status.set_index(place.index);
  status.set_incarnation(place.incarnation);
  status.set_peer(place.role == v1::ROLE_SERVER ? place.address : place.peer);
  status.set_last_contact_seconds(members.SecondsSinceContact(place));
  status.set_alive(members.Alive(place));
  status.set_left(place.left);
  FillStages(members, place, &status);
  if (place.role == v1::ROLE_SERVER) {
    status.set_zone(place.zone);
    *status.mutable_server() = place.server;
  } else {
    *status.mutable_progress() = place.progress;
    status.set_samples_per_second(SamplesPerSecond(members, place));
  }
  return status;
}

}  // namespace

bool AnyWorkerWorks(const MemberTable& members) {
  return std::any_of(members.workers().begin(), members.workers().end(),
                     [&](const MemberPlace& worker) { return Works(members, worker); });
}

Moment MomentOf(const MemberTable& members) {
  Moment moment;
  v1::HistoryPoint& point = moment.point;
  uint32_t training = 0;
  double loss = 0, staleness = 0;
  MetricMean metric;
  for (const MemberPlace& worker : members.workers()) {
    point.set_samples(point.samples() + worker.progress.samples());
    point.set_samples_per_second(point.samples_per_second() + SamplesPerSecond(members, worker));
    if (!Works(members, worker)) continue;
    point.set_workers(point.workers() + 1);
    if (worker.progress.phase() != v1::PHASE_TRAINING || worker.progress.clock() == 0) continue;
    ++training;
    loss += worker.progress.loss();
    staleness += worker.progress.staleness_pushes();
    metric.Add(worker.progress);
  }
  for (const MemberPlace& server : members.servers()) {
    if (members.Alive(server))
      point.set_pushes_per_second(point.pushes_per_second() + server.server.pushes_per_second());
  }
  if (training == 0) return moment;
  moment.trains = true;
  point.set_loss(static_cast<float>(loss / training));
  point.set_staleness_pushes(static_cast<float>(staleness / training));
  metric.Set(&point);
  return moment;
}

v1::ClusterStatus ClusterStatusOf(const ClusterOptions& options, const MemberTable& members,
                                  const ShardAssignment& shards) {
  v1::ClusterStatus status;
  status.set_name(options.cluster);
  status.set_route_epoch(shards.epoch());
  status.set_replicas(options.replicas);
  uint32_t in_sync = 0;
  std::vector<uint32_t> owned(members.servers().size()), following(members.servers().size());
  for (ShardId shard = 0; shards.mapped() && shard < options.shards; ++shard) {
    ++owned[shards.owners()[shard]];
    in_sync += shards.copies().IsComplete(shard);
    for (const uint32_t follower : shards.copies().Of(shard)) ++following[follower];
  }
  status.set_shards_in_sync(in_sync);
  for (const MemberPlace& place : members.servers()) {
    if (place.incarnation == 0) continue;
    v1::MemberStatus* const server = status.add_servers();
    *server = StatusOf(members, place);
    server->set_shards_owned(owned[place.index]);
    server->set_shards_following(following[place.index]);
  }
  for (const MemberPlace& place : members.workers()) {
    if (place.incarnation != 0) *status.add_workers() = StatusOf(members, place);
  }
  for (std::string& line : UnservedLines(options, members, shards)) status.add_unserved(std::move(line));
  for (std::string& line : OneZoneLines(options, members, shards)) status.add_one_zone(std::move(line));
  return status;
}

}  // namespace lodestone::server
