#include "server/coordinator/member_reports.h"

#include <cmath>
#include <utility>

#include "common/base/limits.h"
#include "common/base/utf8.h"

namespace lodestone::server {
namespace {

constexpr size_t kNameBytesMax = 32;  // Of stages, calls, and metrics without their label.
constexpr size_t kMetricNameBytesMax = 96;
constexpr size_t kDeviceBytesMax = 64;  // "cuda:0 (NVIDIA RTX 6000 Ada Generation)".
constexpr int kStagesMax = 8;
constexpr int kTargetsMax = 16;

template <typename List>
void Cut(int size_max, List* list) {
  if (list->size() > size_max) list->erase(list->begin() + size_max, list->end());
}

// A rate or share that may be anything.
float Rate(float reported) { return std::isfinite(reported) && reported > 0 ? reported : 0; }

std::string BoundedName(const std::string& name) { return std::string(Utf8Prefix(name, kNameBytesMax)); }

// "auc", or of several labels "conversion/auc", of which a label that is too long is cut.
std::string BoundedMetricName(const std::string& name) {
  const size_t slash = name.rfind('/');
  if (slash == std::string::npos) return BoundedName(name);
  const std::string metric = BoundedName(name.substr(slash));
  return std::string(Utf8Prefix(name.substr(0, slash), kMetricNameBytesMax - metric.size())) + metric;
}

void BoundWaits(google::protobuf::RepeatedPtrField<v1::WaitStatus>* waits) {
  Cut(static_cast<int>(limits::kWaitsMax), waits);
  for (v1::WaitStatus& wait : *waits) {
    wait.set_who(Bounded(wait.who()));
    wait.set_what(Bounded(wait.what()));
    wait.set_call(BoundedName(wait.call()));
    if (!std::isfinite(wait.seconds())) wait.set_seconds(0);
    Cut(limits::kWaitShardsMax, wait.mutable_shards());
    Cut(kTargetsMax, wait.mutable_targets());
    for (v1::WaitTarget& target : *wait.mutable_targets()) {
      Cut(limits::kWaitShardsMax, target.mutable_shards());
      Cut(limits::kWaitBatchesMax, target.mutable_batches());
    }
    wait.clear_waiter();  // It speaks for itself.
  }
}

void BoundStages(google::protobuf::RepeatedPtrField<v1::StageTime>* stages) {
  Cut(kStagesMax, stages);
  for (v1::StageTime& stage : *stages) {
    stage.set_stage(BoundedName(stage.stage()));
    if (!std::isfinite(stage.seconds())) stage.set_seconds(0);
  }
}

}  // namespace

std::string Bounded(const std::string& text) { return std::string(Utf8Prefix(text, kReportTextBytesMax)); }

void BoundProgress(v1::WorkerProgress* progress) {
  progress->set_waiting_for(Bounded(progress->waiting_for()));
  progress->DiscardUnknownFields();
  BoundWaits(progress->mutable_waits());
  BoundStages(progress->mutable_stages());
  progress->set_device(std::string(Utf8Prefix(progress->device(), kDeviceBytesMax)));
  progress->set_metric_name(BoundedMetricName(progress->metric_name()));
  if (!progress->metric_name().empty() && std::isfinite(progress->metric())) return;
  progress->clear_metric_name();  // Neither is a metric.
  progress->clear_metric();
}

void BoundProgress(v1::ServerProgress* progress) {
  progress->set_http(Bounded(progress->http()));
  Cut(static_cast<int>(limits::kShardLoadsMax), progress->mutable_shards());
  for (v1::ShardLoad& load : *progress->mutable_shards()) {
    load.set_pushes_per_second(Rate(load.pushes_per_second()));
    load.set_pulls_per_second(Rate(load.pulls_per_second()));
    load.set_push_bytes_per_second(Rate(load.push_bytes_per_second()));
    load.set_pull_bytes_per_second(Rate(load.pull_bytes_per_second()));
  }
  Cut(static_cast<int>(limits::kHotKeysMax), progress->mutable_hot_keys());
  for (v1::HotKey& key : *progress->mutable_hot_keys()) {
    key.set_table(Bounded(key.table()));
    key.set_per_second(Rate(key.per_second()));
    key.set_share(Rate(key.share()));
  }
  progress->DiscardUnknownFields();
  BoundWaits(progress->mutable_waits());
  BoundStages(progress->mutable_stages());
}

}  // namespace lodestone::server
