#include "tests/chaos/pushing_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace lodestone::chaos {
namespace {

constexpr size_t kInFlightMax = 8;
// From the oldest push without an answer to the newest: a push is a message to each server, and a client's own window
// of sequences, in which it would wait where nobody can stop it, is longer.
constexpr uint64_t kSpanMax = 64;

}  // namespace

PushingClient::PushingClient(const Run* run, uint32_t slot)
    : run_(run),
      slot_(slot),
      dense_(run->workload->ElementsOf(TableName::kDense)),
      large_(run->workload->ElementsOf(TableName::kLarge)),
      thread_([this] { Loop(); }) {}

PushingClient::~PushingClient() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void PushingClient::Resume() {
  MutexLock lock(&mu_);
  paused_ = false;
  changed_.NotifyAll();
}

void PushingClient::Pause() {
  MutexLock lock(&mu_);
  paused_ = true;
}

size_t PushingClient::in_flight() const {
  MutexLock lock(&mu_);
  return in_flight_.size();
}

bool PushingClient::connected() const {
  MutexLock lock(&mu_);
  return connected_;
}

void PushingClient::Die(uint32_t pushes, uint32_t answers) {
  LODESTONE_CHECK(answers < pushes && pushes <= kLastPushesMax);
  MutexLock lock(&mu_);
  LODESTONE_CHECK(!death_.has_value());
  death_ = Death{.pushes = pushes, .answers = answers};
  revived_ms_.reset();
  changed_.NotifyAll();
}

std::optional<int64_t> PushingClient::revived_ms() const {
  MutexLock lock(&mu_);
  return revived_ms_;
}

absl::Status PushingClient::failure() const {
  MutexLock lock(&mu_);
  return failure_;
}

void PushingClient::Loop() {
  for (;;) {
    Live();
    MutexLock lock(&mu_);
    if (stop_ || !failure_.ok()) return;
  }
}

void PushingClient::Live() {
  if (const absl::Status status = Connect(); !status.ok()) {
    Fail(status);
  }
  for (Turn turn; (turn = AwaitTurn()) == Turn::kSteady || turn == Turn::kLast;) {
    if (turn == Turn::kSteady) {
      Send(run_->workload->SteadyPush(slot_, next_number_++));
      continue;
    }
    uint32_t index = 0;
    {
      MutexLock lock(&mu_);
      index = death_->sent++;
    }
    Send(run_->workload->LastPush(slot_, next_number_++, index));
  }
  {
    MutexLock lock(&mu_);
    closing_ = true;
    connected_ = false;
  }
  client_.reset();  // What is under way ends unanswered.
  MutexLock lock(&mu_);
  LODESTONE_CHECK(in_flight_.empty());
  closing_ = false;
  reviving_ = death_.has_value();
  death_.reset();
}

absl::Status PushingClient::Connect() {
  LODESTONE_ASSIGN_OR_RETURN(client_, worker::Client::Connect(run_->config));
  LODESTONE_ASSIGN_OR_RETURN(tables_, client_->EnsureTables(run_->workload->Tables()));
  MutexLock lock(&mu_);
  connected_ = true;
  return absl::OkStatus();
}

bool PushingClient::HasRoom() const {
  return in_flight_.size() < kInFlightMax &&
         (in_flight_.empty() || next_number_ - in_flight_.begin()->first < kSpanMax);
}

PushingClient::Turn PushingClient::NextTurn() const {
  if (death_.has_value()) {
    const bool steady_done =
        std::none_of(in_flight_.begin(), in_flight_.end(), [](const auto& push) { return !push.second; });
    // Once the others are answered, whatever is still to be sent goes out, and the client dies on it.
    if (death_->sent < death_->pushes && (steady_done || death_->sent < death_->answers)) return Turn::kLast;
    if (death_->sent == death_->pushes && death_->answered >= death_->answers) return Turn::kDie;
  }
  return Turn::kSteady;
}

PushingClient::Turn PushingClient::AwaitTurn() {
  MutexLock lock(&mu_);
  for (;;) {
    if (stop_ || !failure_.ok()) return Turn::kStop;
    const Turn turn = NextTurn();
    if (turn == Turn::kDie) return turn;
    const bool may_send = turn == Turn::kLast ? HasRoom() : !death_.has_value() && !paused_ && HasRoom();
    if (may_send) return turn;
    changed_.Wait(&mu_);
  }
}

void PushingClient::Send(Push push) {
  const auto shared = std::make_shared<const Push>(std::move(push));
  {
    MutexLock lock(&mu_);
    in_flight_[shared->number] = shared->last;
  }
  const absl::Status status = Hand(shared, run_->progress->NowMs());
  if (status.ok()) return;
  MutexLock lock(&mu_);  // Nothing was sent.
  in_flight_.erase(shared->number);
  if (failure_.ok()) failure_ = status;
}

absl::Status PushingClient::Hand(const std::shared_ptr<const Push>& push, int64_t sent_ms) {
  const auto set = [&](bool on) {
    for (const CellAdd& cell : push->cells) {
      (cell.table == TableName::kDense ? dense_ : large_)[cell.element] = on ? static_cast<float>(cell.value) : 0.0f;
    }
  };
  std::vector<worker::DenseGradient> dense;
  if (push->dense) dense.push_back({&tables_[static_cast<int>(TableName::kDense)], dense_.data()});
  if (push->large) dense.push_back({&tables_[static_cast<int>(TableName::kLarge)], large_.data()});
  std::vector<Key> keys[3];  // Of kRows and the tables after it.
  std::vector<float> values[3];
  for (const RowAdd& row : push->rows) {
    const int at = static_cast<int>(row.table) - static_cast<int>(TableName::kRows);
    const uint32_t dim = run_->workload->DimOf(row.table);
    if (keys[at].empty() || keys[at].back() != row.key) {
      keys[at].push_back(row.key);
      values[at].resize(values[at].size() + dim);
    }
    values[at][values[at].size() - dim + row.column] = static_cast<float>(row.value);
  }
  std::vector<worker::RowGradients> rows;
  for (const int at : {0, 1, 2}) {
    if (!keys[at].empty())
      rows.push_back({&tables_[static_cast<int>(TableName::kRows) + at], keys[at], values[at].data()});
  }
  set(true);
  const absl::Status status = client_->Push(
      push->number + 1, dense, rows, {},
      [this, push, sent_ms](const worker::Client::PushResult& result) { OnDone(*push, sent_ms, result.status); });
  set(false);  // They were copied.
  return status;
}

void PushingClient::OnDone(const Push& push, int64_t sent_ms, const absl::Status& status) {
  if (status.ok()) {
    run_->ledger->Acknowledged(push);
    run_->progress->Acknowledged(push.shards, sent_ms);
  } else {
    run_->ledger->Unanswered(push);
  }
  MutexLock lock(&mu_);
  in_flight_.erase(push.number);
  if (status.ok()) {
    if (push.last && death_.has_value()) ++death_->answered;
    if (std::exchange(reviving_, false)) revived_ms_ = run_->progress->NowMs();
  } else if (!closing_ && failure_.ok()) {
    failure_ = Annotate(status, absl::StrCat("push ", push.number, " of slot ", slot_));
  }
  changed_.NotifyAll();
}

void PushingClient::Fail(const absl::Status& status) {
  MutexLock lock(&mu_);
  if (failure_.ok() && !stop_) failure_ = Annotate(status, absl::StrCat("slot ", slot_));
}

}  // namespace lodestone::chaos
