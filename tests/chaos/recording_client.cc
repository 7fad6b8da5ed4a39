#include "tests/chaos/recording_client.h"

#include <chrono>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace lodestone::chaos {
namespace {

v1::TableSpec Counters() {
  v1::TableSpec spec;
  spec.set_name("counters");
  spec.mutable_embedding()->set_dim(1);
  spec.mutable_initializer()->mutable_zeros();
  spec.mutable_optimizer()->set_learning_rate(-1);
  spec.mutable_optimizer()->mutable_sgd();
  return spec;
}

}  // namespace

RecordingClient::RecordingClient(const Run* run, uint32_t slot)
    : run_(run), session_(slot), thread_([this] { Loop(); }) {}

RecordingClient::~RecordingClient() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void RecordingClient::Resume() {
  MutexLock lock(&mu_);
  paused_ = false;
  changed_.NotifyAll();
}

void RecordingClient::Pause() {
  MutexLock lock(&mu_);
  paused_ = true;
}

bool RecordingClient::idle() const {
  MutexLock lock(&mu_);
  return !busy_;
}

bool RecordingClient::connected() const {
  MutexLock lock(&mu_);
  return connected_;
}

absl::Status RecordingClient::failure() const {
  MutexLock lock(&mu_);
  return failure_;
}

void RecordingClient::Loop() {
  for (;;) {
    const absl::Status status = Live();
    MutexLock lock(&mu_);
    connected_ = false;
    if (!status.ok() && !stop_) failure_ = Annotate(status, absl::StrCat("recording client ", session_));
    if (stop_ || !failure_.ok()) return;
    session_ += run_->slots;
  }
}

absl::Status RecordingClient::Live() {
  LODESTONE_RETURN_IF_ERROR(Connect());
  while (AwaitTurn()) {
    LODESTONE_ASSIGN_OR_RETURN(const bool lives, Make(run_->recorder->Next(session_)));
    if (!lives) return absl::OkStatus();
  }
  client_.reset();
  return absl::OkStatus();
}

absl::Status RecordingClient::Connect() {
  LODESTONE_ASSIGN_OR_RETURN(client_, worker::Client::Connect(run_->config));
  LODESTONE_ASSIGN_OR_RETURN(tables_, client_->EnsureTables({Counters()}));
  MutexLock lock(&mu_);
  connected_ = true;
  return absl::OkStatus();
}

bool RecordingClient::AwaitTurn() {
  MutexLock lock(&mu_);
  while (paused_ && !stop_) changed_.Wait(&mu_);
  busy_ = !stop_;
  return busy_;
}

absl::StatusOr<bool> RecordingClient::Make(Recorder::Order order) {
  order.operation.start_ns = Recorder::NowNs();
  LODESTONE_RETURN_IF_ERROR(Ask(order));
  bool stops = false;
  {
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(order.dies_after_us);
    MutexLock lock(&mu_);
    while (!answer_.has_value() && !stop_) {
      if (!order.dies) {
        changed_.Wait(&mu_);
      } else if (!changed_.WaitUntil(&mu_, until)) {
        break;
      }
    }
    stops = order.dies || !answer_.has_value();
  }
  if (stops) client_.reset();  // What is under way ends, answered by chance.
  Answer answer;
  {
    MutexLock lock(&mu_);
    LODESTONE_CHECK(answer_.has_value());
    answer = *std::exchange(answer_, std::nullopt);
    if (answer.status.ok()) order.operation.end_ns = answered_ns_;
  }
  if (order.operation.answered() && order.operation.call == Operation::Call::kRead) {
    order.operation.value = std::llround(values_[0]);
    order.operation.twin = std::llround(values_[1]);
    order.operation.version = answer.version;
  }
  Record(order);
  if (!stops) LODESTONE_RETURN_IF_ERROR(answer.status);
  return !stops;
}

void RecordingClient::Record(const Recorder::Order& order) {
  if (order.operation.call == Operation::Call::kAdd) {
    Push push;  // All that the ledger is to know of it.
    push.shards = {order.operation.shard};
    if (order.operation.answered()) {
      run_->ledger->Acknowledged(push);
    } else {
      run_->ledger->Unanswered(push);
    }
  }
  run_->recorder->Record(order.history, order.operation);
  MutexLock lock(&mu_);
  busy_ = false;
}

absl::Status RecordingClient::Ask(const Recorder::Order& order) {
  keys_[0] = order.key;
  keys_[1] = order.twin;
  if (order.operation.call == Operation::Call::kAdd) {
    values_[0] = values_[1] = static_cast<float>(order.operation.value);
    const worker::RowGradients rows{&tables_[0], keys_, values_};
    return client_->Push(++pushes_, {}, {&rows, 1}, {},
                         [this](const worker::Client::PushResult& result) { OnAnswer(result.status, 0); });
  }
  const ShardId shard = order.operation.shard;
  client_->Pull({}, {{&tables_[0], keys_, values_}},
                [this, shard](const absl::Status& status, const worker::ShardVersions& versions) {
                  OnAnswer(status, status.ok() ? versions[shard] : 0);
                });
  return absl::OkStatus();
}

void RecordingClient::OnAnswer(const absl::Status& status, Version version) {
  const int64_t now_ns = Recorder::NowNs();
  MutexLock lock(&mu_);
  answer_ = Answer{status, version};
  answered_ns_ = now_ns;
  changed_.NotifyAll();
}

}  // namespace lodestone::chaos
