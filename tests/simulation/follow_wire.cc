#include "tests/simulation/follow_wire.h"

#include <utility>
#include <vector>

#include "common/base/check.h"
#include "grpcpp/support/slice.h"

namespace lodestone::simulation {
namespace {

std::string BytesOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  LODESTONE_CHECK(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

grpc::ByteBuffer BufferOf(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

class FollowWire final : public server::FollowStream::Wire, public std::enable_shared_from_this<FollowWire> {
 public:
  FollowWire(Network* network, LineRef line, std::function<void()> ended)
      : network_(network), line_(std::move(line)), ended_(std::move(ended)) {}

  void Begin(const OpenStream& open) {
    self_ = shared_from_this();
    line_->Listen(
        1,
        [self = self_](const std::string& message) {
          self->messages_.push_back(message);
          self->Read();
        },
        [self = self_](const absl::Status&) { self->OnGone(); }, /*also_dead=*/true);
    stream_ = open(this);
  }

  void StartRead(grpc::ByteBuffer* message) override {
    reading_ = message;
    Soon([this] { Read(); });
  }
  void StartWrite(const grpc::ByteBuffer* message) override {
    line_->Send(1, BytesOf(*message));
    writing_ = true;
    // As long as the other end does not take anything, nor is a write over.
    Soon([this] { Written(); });
  }
  void Finish(const absl::Status& status) override {
    line_->Close(1, status);
    finished_ = true;
    Soon([this] {
      if (std::exchange(reading_, nullptr) != nullptr) stream_->OnReadDone(false);
      stream_->OnDone();
      stream_.reset();
      line_->Listen(1, nullptr, nullptr, /*also_dead=*/true);
      ended_();
      self_.reset();
    });
  }
  void TryCancel() override {
    Soon([this] { OnGone(); });
  }

 private:
  void Soon(std::function<void()> event) {
    network_->kernel()->After(
        network_->kernel()->Between(1, 100), line_->process(1),
        [self = shared_from_this(), event = std::move(event)] {
          if (self->stream_ != nullptr) event();  // Nothing comes after OnDone.
        },
        /*also_dead=*/true);
  }
  void Read() {
    if (stream_ == nullptr || reading_ == nullptr || (messages_.empty() && !gone_)) return;
    grpc::ByteBuffer* const to = std::exchange(reading_, nullptr);
    if (messages_.empty()) return stream_->OnReadDone(false);
    *to = BufferOf(messages_.front());
    messages_.pop_front();
    stream_->OnReadDone(true);
  }
  void Written() {
    const bool held =
        line_->process(0)->stopped || network_->IsCut(line_->process(0)->machine, line_->process(1)->machine);
    if (!gone_ && held && line_->process(1)->alive) {
      const auto again = [self = shared_from_this()] { self->Written(); };
      network_->kernel()->After(5'000, line_->process(1), again, /*also_dead=*/true);
      return;
    }
    writing_ = false;
    stream_->OnWriteDone(!gone_);
  }
  void OnGone() {
    if (gone_ || finished_ || stream_ == nullptr) return;
    gone_ = true;
    stream_->OnCancel();
    if (!finished_) Read();  // Ends the one under way.
  }

  Network* const network_;
  const LineRef line_;
  const std::function<void()> ended_;
  std::shared_ptr<FollowWire> self_;  // Until all has ended.
  std::shared_ptr<server::FollowStream> stream_;
  std::deque<std::string> messages_;
  grpc::ByteBuffer* reading_ = nullptr;
  bool writing_ = false;
  bool gone_ = false;
  bool finished_ = false;
};

class SimulatedCall final : public server::FollowCall {
 public:
  SimulatedCall(Network* network, const ProcessRef& caller, const Listener& listener)
      : state_(std::make_shared<State>()) {
    Kernel* const kernel = network->kernel();
    state_->kernel = kernel;
    const auto state = state_;
    if (listener.process == nullptr || !listener.process->alive) {
      kernel->After(
          network->DelayUs(), caller, [state] { End(state, absl::UnavailableError("nobody listens there")); },
          /*also_dead=*/true);
      return;
    }
    line_ = network->Connect(caller, listener.process);
    line_->Listen(
        0,
        [state](const std::string& message) {
          state->messages.push_back(message);
          state->kernel->Notify(state.get());
        },
        [state](const absl::Status& status) { End(state, status); }, /*also_dead=*/true);
    kernel->After(network->DelayUs(), listener.process, [line = line_, take = listener.take] { take(line); });
  }
  ~SimulatedCall() override { TryCancel(); }

  bool Write(const grpc::ByteBuffer& message) override {
    if (state_->end.has_value()) return false;
    if (line_ != nullptr) line_->Send(0, BytesOf(message));
    return true;
  }
  bool Read(grpc::ByteBuffer* message) override {
    while (state_->messages.empty() && !state_->end.has_value()) state_->kernel->Wait(state_.get(), Simulation::kNever);
    if (state_->messages.empty()) return false;
    *message = BufferOf(state_->messages.front());
    state_->messages.pop_front();
    return true;
  }
  void TryCancel() override {
    if (line_ != nullptr) line_->Close(0, absl::CancelledError("the follower has ended the call"));
    End(state_, absl::CancelledError("the call was cancelled"));
    state_->messages.clear();
  }
  absl::Status Finish() override { return state_->end.value_or(absl::OkStatus()); }

 private:
  struct State {
    Kernel* kernel = nullptr;
    std::deque<std::string> messages;
    std::optional<absl::Status> end;
  };
  static void End(const std::shared_ptr<State>& state, const absl::Status& status) {
    if (!state->end.has_value()) state->end = status;
    state->kernel->Notify(state.get());
  }

  const std::shared_ptr<State> state_;
  LineRef line_;
};

class SimulatedPlace final : public server::FollowPlace {
 public:
  SimulatedPlace(Network* network, ProcessRef caller, std::function<Listener()> find)
      : network_(network), caller_(std::move(caller)), find_(std::move(find)) {}
  std::unique_ptr<server::FollowCall> Call() override {
    return std::make_unique<SimulatedCall>(network_, caller_, find_());
  }
  void Reconnect() override {}

 private:
  Network* const network_;
  const ProcessRef caller_;
  const std::function<Listener()> find_;
};

}  // namespace

void TakeFollowCall(Network* network, const LineRef& line, const OpenStream& open, std::function<void()> ended) {
  std::make_shared<FollowWire>(network, line, std::move(ended))->Begin(open);
}

std::unique_ptr<server::FollowPlace> MakeFollowPlace(Network* network, const ProcessRef& caller,
                                                     std::function<Listener()> find) {
  return std::make_unique<SimulatedPlace>(network, caller, std::move(find));
}

}  // namespace lodestone::simulation
