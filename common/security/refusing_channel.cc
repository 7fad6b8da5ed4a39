#include "common/security/refusing_channel.h"

#include <utility>
#include <vector>

#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/client_interceptor.h"

namespace lodestone {
namespace {

using grpc::experimental::InterceptionHookPoints;

// Takes a call over before anything of it is sent, and ends it.
class Refusal final : public grpc::experimental::Interceptor {
 public:
  explicit Refusal(grpc::Status error) : error_(std::move(error)) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->Hijack();
      return;
    }
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_MESSAGE)) {
      methods->FailHijackedSendMessage();
    }
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_RECV_MESSAGE)) {
      methods->FailHijackedRecvMessage();
    }
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_RECV_STATUS)) {
      *methods->GetRecvStatus() = error_;
    }
    methods->Proceed();
  }

 private:
  const grpc::Status error_;
};

class Refusals final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit Refusals(grpc::Status error) : error_(std::move(error)) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(grpc::experimental::ClientRpcInfo*) override {
    return new Refusal(error_);
  }

 private:
  const grpc::Status error_;
};

}  // namespace

std::shared_ptr<grpc::Channel> RefusingChannel(const std::string& target, const absl::Status& error) {
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> refusals;
  refusals.push_back(std::make_unique<Refusals>(
      grpc::Status(static_cast<grpc::StatusCode>(error.code()), std::string(error.message()))));
  return grpc::experimental::CreateCustomChannelWithInterceptors(target, grpc::InsecureChannelCredentials(),
                                                                 grpc::ChannelArguments(), std::move(refusals));
}

}  // namespace lodestone
