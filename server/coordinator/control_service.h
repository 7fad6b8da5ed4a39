// The Coordinator service as a ps registers it: heartbeats, routes and reports of followers have a completion queue and
// a thread of their own, so that bulk work on gRPC's callback threads does not delay them; the other methods, which may
// be held for long, are callbacks.
//
// The thread looks at its queue every few milliseconds (each, after a route or a report) instead of waiting in it: with
// gRPC a thread that waits is woken by every message, to poll in another's place (common/rpc/callback_threads.h). Only
// while all callback threads stay busy, so that nobody polls, it polls itself.
//
// Thread-safe. Must outlive the gRPC server.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "common/base/mutex.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/server_builder.h"
#include "proto/coordinator.grpc.pb.h"
#include "server/coordinator/control_methods.h"

namespace lodestone::server {

class ControlService final
    : public v1::Coordinator::WithCallbackMethod_Join<v1::Coordinator::WithCallbackMethod_AwaitClock<
          v1::Coordinator::WithCallbackMethod_Validate<v1::Coordinator::WithCallbackMethod_LeaseRanges<
              v1::Coordinator::WithAsyncMethod_Heartbeat<v1::Coordinator::WithAsyncMethod_Route<
                  v1::Coordinator::WithAsyncMethod_ReportSync<v1::Coordinator::Service>>>>>>> {
 public:
  // `others` has the methods that are callbacks; both must outlive this. `busy`: whether all threads that usually poll
  // are in callbacks at the moment.
  ControlService(ControlMethods* methods, v1::Coordinator::CallbackService* others, std::function<bool()> busy);
  ~ControlService() override { Shutdown(); }

  // Registers the service and its queue. Start: takes calls. REQUIRES: between them the builder has made the server.
  void Register(grpc::ServerBuilder* builder);
  void Start();
  // Returns when every call has ended. REQUIRES: the gRPC server has shut down.
  void Shutdown();

  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext* context, const v1::JoinRequest* request,
                                 v1::JoinResponse* response) override {
    return others_->Join(context, request, response);
  }
  grpc::ServerUnaryReactor* AwaitClock(grpc::CallbackServerContext* context, const v1::AwaitClockRequest* request,
                                       v1::AwaitClockResponse* response) override {
    return others_->AwaitClock(context, request, response);
  }
  grpc::ServerUnaryReactor* Validate(grpc::CallbackServerContext* context, const v1::ValidateRequest* request,
                                     v1::ValidateResponse* response) override {
    return others_->Validate(context, request, response);
  }
  grpc::ServerUnaryReactor* LeaseRanges(grpc::CallbackServerContext* context, const v1::LeaseRangesRequest* request,
                                        v1::LeaseRangesResponse* response) override {
    return others_->LeaseRanges(context, request, response);
  }

 private:
  class Tag;
  template <typename Request, typename Response>
  class Call;
  template <typename Request, typename Response>
  struct Method;

  void Run();
  // A call came that others follow soon.
  void LookQuickly();
  void Note(int calls);

  ControlMethods* const methods_;
  v1::Coordinator::CallbackService* const others_;
  const std::function<bool()> busy_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;  // Null before Register.
  std::thread thread_;
  std::chrono::steady_clock::time_point quick_until_;  // The thread's.

  Mutex mu_;
  CondVar changed_;
  int calls_ ABSL_GUARDED_BY(mu_) = 0;  // Tags that the queue has not returned for the last time.
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace lodestone::server
