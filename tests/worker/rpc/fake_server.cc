#include "tests/worker/rpc/fake_server.h"

#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/rpc/channel.h"
#include "common/wire/message.h"
#include "common/wire/ps_name.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"
#include "proto/parameter_server.pb.h"
#include "server/rpc/key_list_cache.h"

namespace lodestone::worker {

namespace {

// Moves what `message` and `payload` say into an answer's result and payload; false if `message` is not one of
// `method`.
bool ToAnswer(const std::string& method, const grpc::ByteBuffer& message, v1::Answer* answer, Payload* payload) {
  google::protobuf::Message* result = nullptr;
  if (method == "Push") {
    result = answer->mutable_push();
  } else if (method == "Pull") {
    result = answer->mutable_pull();
  } else if (method == "PushPull") {
    result = answer->mutable_push_pull();
  } else if (method == "EnsureTables") {
    result = answer->mutable_ensure_tables();
  } else {
    result = answer->mutable_delta();
  }
  if (!ParseMessage(message, result, payload).ok()) return false;
  answer->set_payload_bytes(payload->size());
  return true;
}

std::vector<grpc::Slice> Copy(const ByteView& bytes) {
  std::string copy(bytes.size(), '\0');
  bytes.CopyTo(copy.data());
  return {grpc::Slice(copy)};
}

// The call as a message of the unary method, whose name is returned.
std::string ToUnary(const v1::Call& call, const Payload& payload, grpc::ByteBuffer* request) {
  const auto build = [&](const google::protobuf::MessageLite& header) {
    *request = BuildMessage(header, Copy(payload.bytes()));
  };
  switch (call.request_case()) {
    case v1::Call::kPush:
      build(call.push());
      return "Push";
    case v1::Call::kPull:
      build(call.pull());
      return "Pull";
    case v1::Call::kPushPull:
      build(call.push_pull());
      return "PushPull";
    case v1::Call::kSubscribe:
      build(call.subscribe());
      return "Subscribe";
    case v1::Call::kEnsureTables:
      build(call.ensure_tables());
      return "EnsureTables";
    case v1::Call::REQUEST_NOT_SET:
      break;
  }
  return "";
}

}  // namespace

// gRPC's side of a unary call, or of a stream Exchange with its calls.
class FakeReactor final : public grpc::ServerGenericBidiReactor {
 public:
  FakeReactor(std::string method, std::string peer, std::string meant, const FakeServer::Handler* handler,
              FakeLists* lists)
      : method_(std::move(method)),
        peer_(std::move(peer)),
        meant_(std::move(meant)),
        handler_(handler),
        lists_(lists),
        out_(std::make_shared<Out>(this, method_ == "Exchange", lists)) {
    StartRead(&message_);
  }

  void OnReadDone(bool ok) override {
    if (method_ != "Exchange") {
      auto call = std::make_shared<FakeCall>(method_, peer_, meant_, 0, out_);
      calls_.push_back(call);
      if (!ok) return call->Finish(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no request came"));
      call->request_ = message_;
      (*handler_)(call);
      return;
    }
    if (!ok) return out_->End(grpc::Status::OK);
    v1::ExchangeRequest header;
    Payload payload;
    LODESTONE_CHECK(ParseMessage(message_, &header, &payload).ok());
    for (const v1::Call& received : header.calls()) {
      grpc::ByteBuffer request;
      server::RequestPayload numbers = payload.Take(received.payload_bytes());
      v1::Answer::Keys outcome = v1::Answer::NO_LIST;
      const absl::Status found = TakeKeys(received, &numbers, &outcome);
      std::string method = ToUnary(received, numbers.payload, &request);
      auto call = std::make_shared<FakeCall>(std::move(method), peer_, meant_, received.id(), out_);
      call->request_ = std::move(request);
      call->keys_ = std::move(numbers.keys);
      call->keys_outcome_ = outcome;
      std::erase_if(calls_, [](const auto& known) { return known->over(); });
      calls_.push_back(call);
      if (found.ok()) {
        (*handler_)(call);
      } else {
        call->Finish(grpc::Status(static_cast<grpc::StatusCode>(found.code()), std::string(found.message())));
      }
    }
    message_.Clear();
    StartRead(&message_);
  }

  void OnWriteDone(bool) override { out_->OnWritten(); }
  void OnCancel() override { out_->End(grpc::Status::CANCELLED); }
  void OnDone() override {
    out_->Disconnect();
    for (const auto& call : calls_) call->Abandon();
    delete this;
  }

 private:
  // Outlives the reactor if calls do.
  class Out final : public FakeCall::Sink {
   public:
    Out(FakeReactor* reactor, bool exchange, const FakeLists* lists)
        : exchange_(exchange), lists_(lists), reactor_(reactor) {}

    void Write(FakeCall* call, grpc::ByteBuffer message) override {
      v1::Answer answer;
      Payload payload;
      answer.set_id(call->id());
      answer.set_keys(call->keys_outcome());
      if (exchange_ && ToAnswer(call->method(), message, &answer, &payload)) {
        message = Message(answer, Copy(payload.bytes()));
      }
      MutexLock lock(&mu_);
      if (answer.has_delta()) {
        queue_.push_back(std::move(message));
      } else if (exchange_) {
        held_[call->id()] = std::move(message);
      } else {
        queue_.push_back(std::move(message));
      }
      Pump();
    }

    void Finish(FakeCall* call, const grpc::Status& status) override {
      if (!exchange_) return End(status);
      MutexLock lock(&mu_);
      const auto held = held_.find(call->id());
      if (status.ok() && held != held_.end()) {
        queue_.push_back(std::move(held->second));
      } else {
        v1::Answer answer;
        answer.set_id(call->id());
        answer.set_keys(call->keys_outcome());
        answer.set_code(static_cast<uint32_t>(status.ok() ? grpc::StatusCode::UNAVAILABLE : status.error_code()));
        answer.set_error(status.error_message());
        queue_.push_back(Message(answer, {}));
      }
      if (held != held_.end()) held_.erase(held);
      Pump();
    }

    void End(const grpc::Status& status) {
      MutexLock lock(&mu_);
      if (!status_.has_value()) status_ = status;
      Pump();
    }
    void OnWritten() {
      MutexLock lock(&mu_);
      queue_.pop_front();
      writing_ = false;
      Pump();
    }
    void Disconnect() {
      MutexLock lock(&mu_);
      reactor_ = nullptr;
    }

   private:
    grpc::ByteBuffer Message(const v1::Answer& answer, const std::vector<grpc::Slice>& payload) const {
      v1::ExchangeResponse header;
      *header.add_answers() = answer;
      header.mutable_answers(0)->set_takes_several_shards(lists_ != nullptr && lists_->several_shards);
      return BuildMessage(header, payload);
    }
    void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      if (reactor_ == nullptr || writing_ || finished_) return;
      if (!queue_.empty()) {
        writing_ = true;
        reactor_->StartWrite(&queue_.front());
      } else if (status_.has_value()) {
        finished_ = true;
        reactor_->Finish(*status_);
      }
    }

    const bool exchange_;
    const FakeLists* const lists_;
    Mutex mu_;
    FakeReactor* reactor_ ABSL_GUARDED_BY(mu_);
    std::deque<grpc::ByteBuffer> queue_ ABSL_GUARDED_BY(mu_);
    std::map<uint64_t, grpc::ByteBuffer> held_ ABSL_GUARDED_BY(mu_);  // Results of calls that are not finished.
    bool writing_ ABSL_GUARDED_BY(mu_) = false;
    bool finished_ ABSL_GUARDED_BY(mu_) = false;
    std::optional<grpc::Status> status_ ABSL_GUARDED_BY(mu_);
  };

  // Finds the call's keys, if it has a list of them.
  absl::Status TakeKeys(const v1::Call& call, server::RequestPayload* numbers, v1::Answer::Keys* outcome) {
    if (!call.has_keys()) return absl::OkStatus();
    const v1::KeyList::Place place = call.keys().place();
    if (lists_ == nullptr || !lists_->known) {
      LODESTONE_CHECK(place == v1::KeyList::IN_PARTS);
      return absl::OkStatus();
    }
    const int forgettings = lists_->forgettings;
    if (!remembered_.has_value() || forgettings != forgettings_) remembered_.emplace(lists_->pool);
    forgettings_ = forgettings;
    ++(place == v1::KeyList::IN_PARTS ? lists_->in_parts
       : place == v1::KeyList::FIRST  ? lists_->first
                                      : lists_->remembered);
    const absl::Status found = remembered_->Take(call.keys(), numbers, outcome);
    if (!found.ok()) ++lists_->forgotten;
    return found;
  }

  const std::string method_;
  const std::string peer_;
  const std::string meant_;
  const FakeServer::Handler* const handler_;
  FakeLists* const lists_;
  const std::shared_ptr<Out> out_;
  int forgettings_ = 0;
  std::optional<server::KeyListCache> remembered_;  // Of this stream.
  grpc::ByteBuffer message_;
  std::vector<std::shared_ptr<FakeCall>> calls_;
};

bool FakeCall::over() const {
  MutexLock lock(&mu_);
  return sink_ == nullptr;
}

void FakeCall::Abandon() {
  MutexLock lock(&mu_);
  sink_ = nullptr;
}

void FakeCall::Write(grpc::ByteBuffer message) {
  MutexLock lock(&mu_);
  if (sink_ != nullptr) sink_->Write(this, std::move(message));
}

void FakeCall::Write(const google::protobuf::MessageLite& message) { Write(BuildMessage(message, {})); }

void FakeCall::Finish(const grpc::Status& status) {
  MutexLock lock(&mu_);
  if (const std::shared_ptr<Sink> sink = std::exchange(sink_, nullptr); sink != nullptr) sink->Finish(this, status);
}

void FakeCall::Reply(grpc::ByteBuffer message) {
  Write(std::move(message));
  Finish(grpc::Status::OK);
}

void FakeCall::Reply(const google::protobuf::MessageLite& message) { Reply(BuildMessage(message, {})); }

FakeServer::FakeServer(Handler handler, int port, uint32_t message_max_bytes, FakeLists* lists)
    : handler_(std::move(handler)), lists_(lists) {
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
  const auto meant = context->client_metadata().find(kMeantPsKey);
  return new FakeReactor(
      path.substr(path.rfind('/') + 1), context->peer(),
      meant == context->client_metadata().end() ? "" : std::string(meant->second.data(), meant->second.size()),
      &handler_, lists_);
}

}  // namespace lodestone::worker
