#include "common/rpc/coordinator_finder.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace lodestone {
namespace {

constexpr int64_t kTimeoutMs = 1000;  // Of a question to one of etcd's endpoints.

}  // namespace

CoordinatorFinder::CoordinatorFinder(const v1::Config& config) : key_(EtcdCoordinatorKey(config.cluster().name())) {
  const auto& endpoints = config.coordinator().etcd();
  if (endpoints.empty()) {
    address_ = config.coordinator().address();
    return;
  }
  absl::StatusOr<CredentialsRef> credentials = EtcdCredentials(config.coordinator());
  usable_ = credentials.status();
  if (!usable_.ok()) return;
  etcd_ = std::make_unique<EtcdClient>(std::vector<std::string>(endpoints.begin(), endpoints.end()), kTimeoutMs,
                                       *std::move(credentials));
}

absl::StatusOr<std::string> CoordinatorFinder::Address() {
  LODESTONE_RETURN_IF_ERROR(usable_);
  {
    MutexLock lock(&mu_);
    if (!address_.empty() || etcd_ == nullptr) return address_;
  }
  LODESTONE_ASSIGN_OR_RETURN(const std::optional<EtcdClient::Value> found, etcd_->Get(key_));
  if (!found.has_value()) {
    return absl::UnavailableError(
        absl::StrCat("no ps serves the coordinator at the moment (etcd has no key ", key_, ")"));
  }
  MutexLock lock(&mu_);
  address_ = found->bytes;
  return address_;
}

void CoordinatorFinder::Missed(const std::string& address) {
  MutexLock lock(&mu_);
  if (etcd_ != nullptr && address_ == address) address_.clear();
}

void CoordinatorFinder::Stop() {
  if (etcd_ != nullptr) etcd_->Stop();
}

}  // namespace lodestone
