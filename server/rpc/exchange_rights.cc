// The part of Exchange that looks at who calls: who may open a stream, which of its calls he may make, and how it ends.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/wire/ps_name.h"
#include "server/rpc/exchange.h"
#include "server/rpc/exchange_stream.h"

namespace lodestone::server {

absl::Status ExchangeStream::CheckCall(const v1::Call& call, size_t payload_bytes) {
  LODESTONE_ASSIGN_OR_RETURN(const int64_t hold_ms, caller_->Check(call, payload_bytes));
  if (hold_ms == 0) return absl::OkStatus();
  {
    MutexLock lock(&mu_);
    ++holds_;
  }
  exchange_->access_->timer()->After(hold_ms, [weak = weak_from_this()] {
    const auto stream = weak.lock();
    if (stream == nullptr) return;
    Step step(stream.get());
    --stream->holds_;
  });
  return absl::OkStatus();
}

void ExchangeStream::End(const absl::Status& status) {
  {
    Step step(this);
    if (!end_.has_value()) end_ = status;
  }
  CancelSubscriptions(status);
}

void ExchangeStream::Revoke(const absl::Status& why) {
  {
    MutexLock lock(&mu_);
    // Told before, and still there: the client does not take its answers.
    if (std::exchange(revoked_, true) && !done_) context_->TryCancel();
  }
  End(why);
}

void ExchangeStream::OnDone() {
  {
    MutexLock lock(&mu_);
    done_ = true;
  }
  self_.reset();
}

absl::Status Exchange::CheckMeant(const grpc::CallbackServerContext& context) const {
  const auto meant = context.client_metadata().find(kMeantPsKey);
  if (name_.empty() || meant == context.client_metadata().end() || meant->second == name_) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("this is ", name_, ", not the one that the caller means"));
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Exchange::Open(grpc::CallbackServerContext* context) {
  absl::Status end = CheckMeant(*context);
  std::shared_ptr<Caller> caller;
  if (access_ != nullptr) {
    auto known = access_->Identify(CallOf(*context));
    if (known.ok()) caller = *known;
    end.Update(known.status());
  }
  const auto stream = std::make_shared<ExchangeStream>(this, context, caller);
  {
    MutexLock lock(&mu_);
    std::erase_if(streams_, [](const auto& known) { return known.expired(); });
    streams_.push_back(stream);
    if (draining_) end = absl::UnavailableError("the ps shuts down");
  }
  stream->Start(end);
  if (caller != nullptr) access_->Watch(caller, stream);
  return stream.get();
}

}  // namespace lodestone::server
