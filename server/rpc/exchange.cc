#include "server/rpc/exchange.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/wire/ps_name.h"
#include "server/auth/authorized_caller.h"
#include "server/rpc/exchange_stream.h"

namespace lodestone::server {
namespace {

absl::Status ShutsDown() { return absl::UnavailableError("the ps shuts down; retry when it is back"); }

}  // namespace

absl::Status Exchange::CheckMeant(const grpc::CallbackServerContext& context) const {
  const auto meant = context.client_metadata().find(kMeantPsKey);
  if (name_.empty() || meant == context.client_metadata().end() || meant->second == name_) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("this is ", name_, ", not the ps that the caller means; refresh its address"));
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Exchange::Open(grpc::CallbackServerContext* context) {
  absl::Status end = CheckMeant(*context);
  std::shared_ptr<Caller> caller;
  if (access_ != nullptr) {
    auto known = access_->Identify(CallOf(*context));
    if (known.ok()) caller = *known;
    end.Update(known.status());
  }
  ExchangeStream::Services services;
  services.store = store_;
  services.broadcaster = broadcaster_;
  services.incarnation = incarnation_;
  services.memory = memory_;
  if (access_ != nullptr) services.timer = access_->timer();
  if (caller == nullptr) services.shared_use = shared_use_;
  services.key_list_pool = key_list_pool_;
  const auto stream = std::make_shared<ExchangeStream>(std::move(services), context, caller);
  {
    MutexLock lock(&mu_);
    std::erase_if(streams_, [](const auto& known) { return known.expired(); });
    streams_.push_back(stream);
    if (draining_) end = ShutsDown();
  }
  stream->Start(end);
  if (caller != nullptr) access_->Watch(caller, stream);
  return stream.get();
}

void Exchange::Drain() {
  std::vector<std::weak_ptr<ExchangeStream>> streams;
  {
    MutexLock lock(&mu_);
    draining_ = true;
    streams = streams_;
  }
  for (const auto& known : streams) {
    if (const auto stream = known.lock(); stream != nullptr) stream->End(ShutsDown());
  }
}

}  // namespace lodestone::server
