#include "server/coordinator/control_service.h"

#include <pthread.h>

#include <chrono>
#include <utility>

#include "common/rpc/grpc_status.h"

namespace lodestone::server {
namespace {

constexpr std::chrono::milliseconds kLookPeriod{10};
// The same for a while after a route or a report: in a move or a failover, owners and followers make these one after
// the other, and shards are unserved meanwhile.
constexpr std::chrono::milliseconds kQuickLookPeriod{1};
constexpr std::chrono::milliseconds kQuickFor{50};

// Whether more calls come soon after such a one: those of members who need a newer map, and reports. Others ask for the
// map now and then.
bool OthersFollow(const v1::HeartbeatRequest&) { return false; }
bool OthersFollow(const v1::RouteRequest& request) { return request.incarnation() != 0; }
bool OthersFollow(const v1::ReportSyncRequest&) { return true; }

}  // namespace

class ControlService::Tag {
 public:
  virtual ~Tag() = default;
  // The operation under way has ended.
  virtual void Proceed(bool ok) = 0;
};

// A method: how gRPC is asked for its next call, and what handles it.
template <typename Request, typename Response>
struct ControlService::Method {
  void (ControlService::*request)(grpc::ServerContext*, Request*, grpc::ServerAsyncResponseWriter<Response>*,
                                  grpc::CompletionQueue*, grpc::ServerCompletionQueue*, void*);
  void (ControlMethods::*handle)(const grpc::ServerContextBase&, const Request&, Response*, ControlMethods::Done);
};

// One call, from the time that gRPC is asked for it. Owns itself.
template <typename Request, typename Response>
class ControlService::Call final : public Tag {
 public:
  // Asks for a call.
  static void Await(ControlService* service, const Method<Request, Response>& method) {
    auto* const call = new Call(service, method);
    service->Note(+1);
    (service->*method.request)(&call->context_, &call->request_, &call->writer_, service->queue_.get(),
                               service->queue_.get(), call);
  }

  void Proceed(bool ok) override {
    if (!ok || answered_) {
      service_->Note(-1);
      delete this;
      return;
    }
    Await(service_, method_);
    if (OthersFollow(request_)) service_->LookQuickly();
    answered_ = true;  // The next time it is.
    (service_->methods_->*method_.handle)(context_, request_, &response_, [this](const absl::Status& status) {
      writer_.Finish(response_, ToGrpc(status), this);
    });
  }

 private:
  Call(ControlService* service, const Method<Request, Response>& method) : service_(service), method_(method) {}

  ControlService* const service_;
  const Method<Request, Response> method_;
  bool answered_ = false;
  grpc::ServerContext context_;
  Request request_;
  Response response_;
  grpc::ServerAsyncResponseWriter<Response> writer_{&context_};
};

ControlService::ControlService(ControlMethods* methods, v1::Coordinator::CallbackService* others,
                               std::function<bool()> busy)
    : methods_(methods), others_(others), busy_(std::move(busy)) {}

void ControlService::Register(grpc::ServerBuilder* builder) {
  builder->RegisterService(this);
  queue_ = builder->AddCompletionQueue(/*is_frequently_polled=*/false);
}

void ControlService::Start() {
  Call<v1::HeartbeatRequest, v1::HeartbeatResponse>::Await(
      this, {&ControlService::RequestHeartbeat, &ControlMethods::HandleHeartbeat});
  Call<v1::RouteRequest, v1::RouteResponse>::Await(this, {&ControlService::RequestRoute, &ControlMethods::HandleRoute});
  Call<v1::ReportSyncRequest, v1::ReportSyncResponse>::Await(
      this, {&ControlService::RequestReportSync, &ControlMethods::HandleReportSync});
  thread_ = std::thread([this] { Run(); });
}

void ControlService::Shutdown() {
  if (queue_ == nullptr) return;
  {
    MutexLock lock(&mu_);
    while (calls_ > 0) changed_.Wait(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  queue_->Shutdown();
  if (thread_.joinable()) thread_.join();
  void* tag = nullptr;
  bool ok = false;
  while (queue_->Next(&tag, &ok)) {
  }
  queue_ = nullptr;
}

void ControlService::Note(int calls) {
  MutexLock lock(&mu_);
  calls_ += calls;
  if (calls_ == 0) changed_.NotifyAll();
}

void ControlService::LookQuickly() { quick_until_ = std::chrono::steady_clock::now() + kQuickFor; }

void ControlService::Run() {
  pthread_setname_np(pthread_self(), "control");
  bool was_busy = false;
  for (;;) {
    const bool busy = busy_();
    const bool poll = busy && std::exchange(was_busy, busy);
    was_busy = busy;
    const auto until = std::chrono::system_clock::now() + (poll ? kLookPeriod : std::chrono::milliseconds(0));
    void* tag = nullptr;
    bool ok = false;
    grpc::CompletionQueue::NextStatus next = queue_->AsyncNext(&tag, &ok, until);
    for (; next == grpc::CompletionQueue::GOT_EVENT; next = queue_->AsyncNext(&tag, &ok, until)) {
      static_cast<Tag*>(tag)->Proceed(ok);
    }
    if (next == grpc::CompletionQueue::SHUTDOWN) return;
    MutexLock lock(&mu_);
    if (stopping_) return;
    const auto now = std::chrono::steady_clock::now();
    if (!poll) changed_.WaitUntil(&mu_, now + (now < quick_until_ ? kQuickLookPeriod : kLookPeriod));
  }
}

}  // namespace lodestone::server
