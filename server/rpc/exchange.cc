#include "server/rpc/exchange.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/wire/ps_name.h"
#include "server/auth/authorized_caller.h"
#include "server/rpc/call_memory.h"
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

void Exchange::Tick() {
  if (memory_ == nullptr) return;
  const int64_t waited_ms = std::max(memory_->waited_ms(), memory_->large_answers().waited_ms());
  if (waited_ms < limits::kUnreadMs) return;
  for (const auto& stream : Streams()) stream->EndIfUnread(memory_->NowMs(), /*deltas=*/false);
}

void Exchange::Drain() {
  {
    MutexLock lock(&mu_);
    draining_ = true;
  }
  for (const auto& stream : Streams()) stream->End(ShutsDown());
}

std::vector<std::shared_ptr<ExchangeStream>> Exchange::Streams() {
  std::vector<std::shared_ptr<ExchangeStream>> streams;
  MutexLock lock(&mu_);
  for (const auto& known : streams_) {
    if (auto stream = known.lock(); stream != nullptr) streams.push_back(std::move(stream));
  }
  return streams;
}

}  // namespace lodestone::server
