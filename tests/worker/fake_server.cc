#include "tests/worker/fake_server.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/channel.h"
#include "common/check.h"
#include "common/wire.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"

namespace lodestone {

// gRPC's side of a FakeCall.
class FakeReactor final : public grpc::ServerGenericBidiReactor {
 public:
  FakeReactor(std::shared_ptr<FakeCall> call, const FakeServer::Handler* handler)
      : call_(std::move(call)), handler_(handler) {
    MutexLock lock(&call_->mu_);
    call_->reactor_ = this;
    StartRead(&call_->request_);
  }

  void OnReadDone(bool ok) override {
    if (ok) {
      (*handler_)(call_);
    } else {
      call_->Finish(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no request came"));
    }
  }

  void OnWriteDone(bool) override {
    MutexLock lock(&call_->mu_);
    call_->queue_.pop_front();
    call_->writing_ = false;
    call_->Pump();
  }

  void OnCancel() override { call_->Finish(grpc::Status::CANCELLED); }

  void OnDone() override {
    {
      MutexLock lock(&call_->mu_);
      call_->reactor_ = nullptr;
      call_->finished_ = true;
    }
    delete this;
  }

 private:
  const std::shared_ptr<FakeCall> call_;
  const FakeServer::Handler* const handler_;
};

void FakeCall::Pump() {
  if (reactor_ == nullptr || writing_ || finished_) return;
  if (!queue_.empty()) {
    writing_ = true;
    reactor_->StartWrite(&queue_.front());
  } else if (status_.has_value()) {
    finished_ = true;
    reactor_->Finish(*status_);
  }
}

bool FakeCall::over() const {
  MutexLock lock(&mu_);
  return finished_;
}

void FakeCall::Write(grpc::ByteBuffer message) {
  MutexLock lock(&mu_);
  if (status_.has_value()) return;
  queue_.push_back(std::move(message));
  Pump();
}

void FakeCall::Write(const google::protobuf::MessageLite& message) { Write(BuildMessage(message, {})); }

void FakeCall::Finish(const grpc::Status& status) {
  MutexLock lock(&mu_);
  if (!status_.has_value()) status_ = status;
  Pump();
}

void FakeCall::Reply(grpc::ByteBuffer message) {
  Write(std::move(message));
  Finish(grpc::Status::OK);
}

void FakeCall::Reply(const google::protobuf::MessageLite& message) { Reply(BuildMessage(message, {})); }

FakeServer::FakeServer(Handler handler, int port, uint32_t message_max_bytes) : handler_(std::move(handler)) {
  grpc::ServerBuilder builder;
  ApplyServerSettings(&builder, message_max_bytes);
  builder.AddListeningPort(absl::StrCat("127.0.0.1:", port), grpc::InsecureServerCredentials(), &port_);
  builder.RegisterCallbackGenericService(this);
  server_ = builder.BuildAndStart();
  LODESTONE_CHECK(server_ != nullptr);
}

FakeServer::~FakeServer() {
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
}

std::string FakeServer::address() const { return absl::StrCat("127.0.0.1:", port_); }

grpc::ServerGenericBidiReactor* FakeServer::CreateReactor(grpc::GenericCallbackServerContext* context) {
  const std::string& path = context->method();
  auto call = std::make_shared<FakeCall>(path.substr(path.rfind('/') + 1), context->peer());
  return new FakeReactor(std::move(call), &handler_);
}

}  // namespace lodestone
