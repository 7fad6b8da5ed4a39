#include "server/replication/pending_ack.h"

namespace lodestone::server {

void PendingAck::Settle(const absl::Status& status) {
  absl::Status all;
  {
    MutexLock lock(&mu_);
    status_.Update(status);
    all = status_;
  }
  if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) done_(all);
}

void SettledAcks::Run() {
  for (const auto& [ack, status] : std::exchange(list_, {})) ack->Settle(status);
}

}  // namespace lodestone::server
