#include "common/rpc/coordinator_channel.h"

#include <utility>

#include "common/rpc/grpc_status.h"

namespace lodestone {

CoordinatorChannel::CoordinatorChannel(const v1::Config& config, Connect connect)
    : connect_(std::move(connect)), finder_(config) {}

absl::StatusOr<CoordinatorChannel::ConnectionPtr> CoordinatorChannel::Get() {
  const absl::StatusOr<std::string> address = finder_.Address();
  MutexLock lock(&mu_);
  if (!address.ok()) {
    if (last_ == nullptr) return address.status();
    return last_;
  }
  if (last_ == nullptr || last_->address != *address) {
    auto next = std::make_shared<Connection>();
    next->address = *address;
    next->channel = connect_(*address);
    next->stub = v1::Coordinator::NewStub(next->channel);
    last_ = std::move(next);
  }
  return last_;
}

CoordinatorChannel::ConnectionPtr CoordinatorChannel::Last() const {
  MutexLock lock(&mu_);
  return last_;
}

absl::Status CoordinatorChannel::Note(const Connection& connection, const grpc::Status& status) {
  const absl::Status status_of_call = FromCall(status);
  if (absl::IsUnavailable(status_of_call) || absl::IsDeadlineExceeded(status_of_call) ||
      absl::IsUnimplemented(status_of_call)) {
    finder_.Missed(connection.address);
  }
  return status_of_call;
}

}  // namespace lodestone
