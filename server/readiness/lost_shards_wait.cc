#include "server/readiness/lost_shards_wait.h"

#include "absl/strings/str_cat.h"
#include "common/telemetry/log.h"

namespace lodestone::server {

LostShardsWait::LostShardsWait(uint32_t index, const TimeSource* time, ServingGate* gate)
    : index_(index), name_(absl::StrCat("ps ", index)), time_(time), gate_(gate) {}

void LostShardsWait::SetMap(const ShardMap& map) {
  MutexLock lock(&mu_);
  newest_ = map;
  changed_.NotifyAll();
}

absl::StatusOr<ShardMap> LostShardsWait::Await(ShardMap map, bool cut_short) {
  size_t known = 0;
  for (;;) {
    const size_t lost = map.LostBy(index_).size();
    if (lost == 0) break;
    if (lost != known) NoteLost(map, known = lost, cut_short);
    MutexLock lock(&mu_);
    while (!stopping_ && (!newest_.has_value() || newest_->epoch() <= map.epoch())) changed_.Wait(&mu_);
    if (stopping_) return absl::CancelledError("the ps shuts down");
    map = *newest_;
  }
  gate_->SetReason("");
  MutexLock lock(&mu_);
  waits_for_.clear();
  return map;
}

void LostShardsWait::NoteLost(const ShardMap& map, size_t lost, bool cut_short) {
  const std::string what = absl::StrCat(lost, " of ", map.shards(), " shards");
  std::string why;
  if (cut_short) {
    why = absl::StrCat("the machine of ", name_, " went down, so that it may lack the end of ", what,
                       ", which another ps has; it serves nothing until that one is started, or an operator decides: "
                       "`psctl accept-loss ",
                       index_, "`");
  } else {
    why = absl::StrCat(name_, " was restarted without the data of ", what,
                       " (another server.data_dir, another copy of it, or none), and serves nothing until an operator "
                       "decides: start it with its former folder, or `psctl promote` a ps that holds a copy, or "
                       "`psctl accept-loss ",
                       index_, "`");
  }
  absl::StrAppend(&why, "; `psctl status` of the coordinator's ps says which");
  LODESTONE_LOG(ERROR, "server", "{}", why);
  gate_->SetReason(why);
  MutexLock lock(&mu_);
  if (waits_for_.empty()) since_ms_ = time_->NowMs();
  waits_for_ = why;
}

void LostShardsWait::Stop() {
  MutexLock lock(&mu_);
  stopping_ = true;
  changed_.NotifyAll();
}

void LostShardsWait::FillStatus(v1::StatusResponse* status) const {
  MutexLock lock(&mu_);
  if (waits_for_.empty()) return;
  v1::WaitStatus* const wait = status->add_waits();
  wait->set_who(name_);
  wait->set_what(absl::StrCat("an operator: ", waits_for_));
  wait->add_targets()->set_kind(v1::WaitTarget::OPERATOR);
  wait->set_seconds(static_cast<double>(time_->NowMs() - since_ms_) / 1000);
}

}  // namespace lodestone::server
