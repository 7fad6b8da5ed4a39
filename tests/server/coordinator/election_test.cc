#include "server/coordinator/election.h"

#include <signal.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/chaos/tcp_proxy.h"
#include "tests/common/rpc/etcd_cluster.h"

namespace lodestone::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kTimeoutMs = 60'000;
constexpr uint32_t kShortLeaseMs = 5000;  // Where a lease is to end; a busy machine can still renew it.

v1::CoordinatorState StateOf(uint64_t epoch) {
  v1::CoordinatorState state;
  state.set_cluster("test");
  state.set_epoch(epoch);
  return state;
}

// A ps that runs for election, and what it was told.
class Candidate {
 public:
  struct Told {
    int64_t term = 0;
    std::optional<v1::CoordinatorState> state;
  };

  // `refusals` elections are refused by an error.
  Candidate(std::string name, std::vector<std::string> etcd, uint32_t lease_ms, const TimeSource* time = nullptr,
            int refusals = 0)
      : refusals_(refusals),
        election_({"test", std::move(etcd), lease_ms, time != nullptr ? time : &steady_},
                  {[this](int64_t term, const auto& state) { return OnElected(term, state); },
                   [this](int64_t term, const absl::Status& reason) { OnDeposed(term, reason); }}) {
    election_.Start(std::move(name));
  }

  Election& election() { return election_; }
  Election* operator->() { return &election_; }

  Told AwaitElected() {
    MutexLock lock(&mu_);
    while (!elected_.has_value()) changed_.Wait(&mu_);
    return *std::exchange(elected_, std::nullopt);
  }
  absl::Status AwaitDeposed() {
    MutexLock lock(&mu_);
    while (deposed_.ok()) changed_.Wait(&mu_);
    return std::exchange(deposed_, absl::OkStatus());
  }
  bool was_elected() {
    MutexLock lock(&mu_);
    return elected_.has_value();
  }
  bool was_deposed() {
    MutexLock lock(&mu_);
    return !deposed_.ok();
  }
  // Waits until something keeps it from the election.
  absl::Status AwaitTrouble() {
    absl::Status trouble;
    while (trouble.ok()) trouble = election_.health();
    return trouble;
  }
  // Saves until it is known to be done.
  absl::Status SaveAtLast(int64_t term, const v1::CoordinatorState& state) {
    absl::Status status;
    do {
      status = election_.Save(term, state);
    } while (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status));
    return status;
  }

 private:
  absl::Status OnElected(int64_t term, const std::optional<v1::CoordinatorState>& state) {
    MutexLock lock(&mu_);
    if (refusals_-- > 0) return absl::InternalError("does not want to");
    elected_ = Told{term, state};
    changed_.NotifyAll();
    return absl::OkStatus();
  }
  void OnDeposed(int64_t, const absl::Status& reason) {
    MutexLock lock(&mu_);
    deposed_ = reason;
    changed_.NotifyAll();
  }

  const SteadyTime steady_;
  Mutex mu_;
  CondVar changed_;
  int refusals_ ABSL_GUARDED_BY(mu_);
  std::optional<Told> elected_ ABSL_GUARDED_BY(mu_);
  absl::Status deposed_ ABSL_GUARDED_BY(mu_);
  Election election_;
};

class ElectionTest : public ::testing::Test {
 protected:
  // Fails the test, and returns false, if there is no etcd.
  bool StartEtcd(int members) {
    const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
    auto etcd = EtcdCluster::Start(members, absl::StrCat(std::getenv("TEST_TMPDIR"), "/", test->name()));
    if (!etcd.ok()) ADD_FAILURE() << etcd.status();
    if (!etcd.ok()) return false;
    etcd_ = *std::move(etcd);
    client_ = std::make_unique<EtcdClient>(etcd_->endpoints(), kTimeoutMs);
    return true;
  }
  // As etcd has it; 0 if there is none.
  uint64_t SavedEpoch() {
    const auto found = client_->Get(EtcdStateKey("test"));
    EXPECT_TRUE(found.ok()) << found.status();
    if (!found.ok() || !found->has_value()) return 0;
    v1::CoordinatorState state;
    EXPECT_TRUE(state.ParseFromString((*found)->bytes));
    return state.epoch();
  }
  // Who is elected, as etcd has it.
  std::optional<EtcdClient::Value> Leader() {
    const auto found = client_->Get(EtcdCoordinatorKey("test"));
    EXPECT_TRUE(found.ok()) << found.status();
    return found.ok() ? *found : std::nullopt;
  }

  std::unique_ptr<EtcdCluster> etcd_;
  std::unique_ptr<EtcdClient> client_;
};

TEST_F(ElectionTest, TheFirstIsElectedAndFindsNoState) {
  ASSERT_TRUE(StartEtcd(1));
  Candidate first("ps-0:7000", etcd_->endpoints(), 60'000);
  const Candidate::Told told = first.AwaitElected();
  EXPECT_FALSE(told.state.has_value());
  EXPECT_TRUE(first->Leads(told.term));
  EXPECT_FALSE(first->Leads(told.term - 1));
  EXPECT_EQ(first->leader(), "ps-0:7000");
  ASSERT_TRUE(Leader().has_value());
  EXPECT_EQ(Leader()->bytes, "ps-0:7000");
  EXPECT_EQ(Leader()->created, told.term);
}

TEST_F(ElectionTest, TheNextGoesOnFromTheStateThatWasSavedLast) {
  ASSERT_TRUE(StartEtcd(1));
  Candidate first("ps-0:7000", etcd_->endpoints(), 3'600'000);
  const int64_t term = first.AwaitElected().term;
  Candidate second("ps-1:7000", etcd_->endpoints(), 60'000);
  ASSERT_TRUE(first->Save(term, StateOf(1)).ok());
  ASSERT_TRUE(first->Save(term, StateOf(2)).ok());
  EXPECT_EQ(first->Save(term - 1, StateOf(3)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(second.was_elected());
  first->Stop();  // Long before its lease would end.
  EXPECT_FALSE(first->Leads(term));
  EXPECT_EQ(first->Save(term, StateOf(3)).code(), absl::StatusCode::kFailedPrecondition);
  const Candidate::Told told = second.AwaitElected();
  ASSERT_TRUE(told.state.has_value());
  EXPECT_EQ(told.state->epoch(), 2u);
  EXPECT_GT(told.term, term);
  EXPECT_EQ(second->leader(), "ps-1:7000");
}

TEST_F(ElectionTest, OfManyOneIsElectedAtATime) {
  ASSERT_TRUE(StartEtcd(1));
  constexpr int kCandidates = 5;
  std::vector<std::unique_ptr<Candidate>> all;
  for (int i = 0; i < kCandidates; ++i) {
    all.push_back(std::make_unique<Candidate>(absl::StrCat("ps-", i), etcd_->endpoints(), 60'000));
  }
  for (int i = 0; i < kCandidates; ++i) {
    std::optional<EtcdClient::Value> leader;
    while (!leader.has_value()) leader = Leader();
    for (std::unique_ptr<Candidate>& candidate : all) {
      if (candidate == nullptr || leader->bytes != absl::StrCat("ps-", &candidate - all.data())) continue;
      const Candidate::Told told = candidate->AwaitElected();
      EXPECT_EQ(told.term, leader->created);
      EXPECT_EQ(told.state.has_value() ? told.state->epoch() : 0, i);
      EXPECT_TRUE((*candidate)->Save(told.term, StateOf(i + 1)).ok());
      for (const std::unique_ptr<Candidate>& other : all) {
        EXPECT_TRUE(other == nullptr || other == candidate || !other->was_elected());
      }
      candidate = nullptr;
      break;
    }
  }
  EXPECT_EQ(SavedEpoch(), kCandidates);
  EXPECT_FALSE(Leader().has_value());
}

TEST_F(ElectionTest, AnotherTakesOverFromOneThatCannotRenewItsLease) {
  ASSERT_TRUE(StartEtcd(1));
  auto proxy = chaos::TcpProxy::Start();
  ASSERT_TRUE(proxy.ok()) << proxy.status();
  (*proxy)->SetTarget(etcd_->port(0));
  Candidate first("ps-0", {(*proxy)->address()}, kShortLeaseMs);
  const int64_t term = first.AwaitElected().term;
  ASSERT_TRUE(first.SaveAtLast(term, StateOf(1)).ok());
  Candidate second("ps-1", etcd_->endpoints(), 60'000);
  (*proxy)->SetLink({.holds_requests = true});
  const Candidate::Told told = second.AwaitElected();
  EXPECT_EQ(told.state->epoch(), 1u);
  EXPECT_FALSE(first->Leads(term));  // It counted its lease no longer than etcd did.
  EXPECT_EQ(first->Save(term, StateOf(7)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(first.AwaitDeposed().ok());
  ASSERT_TRUE(second->Save(told.term, StateOf(2)).ok());
  // What it sent meanwhile arrives late, and changes nothing; it learns who is elected now.
  (*proxy)->SetLink({});
  while (first->leader() != "ps-1") std::this_thread::yield();
  EXPECT_EQ(SavedEpoch(), 2u);
  EXPECT_FALSE(first.was_elected());
  EXPECT_TRUE(second->Leads(told.term));
}

TEST_F(ElectionTest, AnotherTakesOverAtOnceFromOneThatIsFoundDeadWhichLearnsOfItIfItLives) {
  if (!StartEtcd(1)) return;
  Candidate first("ps-0:7000", etcd_->endpoints(), kShortLeaseMs);
  const Candidate::Told told = first.AwaitElected();
  ASSERT_TRUE(first->Save(told.term, StateOf(3)).ok());
  Candidate second("ps-1:7000", etcd_->endpoints(), 3'600'000);
  const std::optional<EtcdClient::Value> leader = Leader();
  ASSERT_TRUE(leader.has_value());
  second->NoteGone(leader->lease + 1);  // Another's.
  while (second->leader() != "ps-0:7000") std::this_thread::yield();
  EXPECT_FALSE(second.was_elected());
  second->NoteGone(leader->lease);
  const Candidate::Told next = second.AwaitElected();
  ASSERT_TRUE(next.state.has_value());
  EXPECT_EQ(next.state->epoch(), 3u);
  EXPECT_FALSE(first->Save(told.term, StateOf(4)).ok());
  EXPECT_FALSE(first.AwaitDeposed().ok());
  EXPECT_FALSE(first->Leads(told.term));
  EXPECT_TRUE(second->Leads(next.term));
}

TEST_F(ElectionTest, ThePsThatWasElectedDoesNotWaitForTheLeaseOfItsFormerLife) {
  if (!StartEtcd(1)) return;
  const auto lease = client_->Grant(3600);
  ASSERT_TRUE(lease.ok()) << lease.status();
  const std::string key = EtcdCoordinatorKey("test");
  ASSERT_TRUE(client_->PutIf({}, key, "ps-0:7000", lease->id).ok());
  Candidate ps("ps-0:7000", etcd_->endpoints(), 3'600'000);
  EXPECT_GT(ps.AwaitElected().term, 0);
}

TEST_F(ElectionTest, OneThatWasReplacedAtItsOwnAddressDoesNotTakeThePlaceBack) {
  if (!StartEtcd(1)) return;
  Candidate zombie("ps-0:7000", etcd_->endpoints(), kShortLeaseMs);
  const int64_t former = zombie.AwaitElected().term;
  while (!Leader().has_value()) std::this_thread::yield();
  Candidate next("ps-0:7000", etcd_->endpoints(), 3'600'000);
  const int64_t term = next.AwaitElected().term;
  EXPECT_GT(term, former);
  EXPECT_FALSE(zombie.AwaitDeposed().ok());
  // It has looked at etcd again, and lets the other be.
  while (zombie->leader() != "ps-0:7000") std::this_thread::yield();
  EXPECT_EQ(Leader()->created, term);
  EXPECT_TRUE(next->Leads(term));
}

TEST_F(ElectionTest, OneThatDoesNotKnowThatItWasDeposedChangesNothing) {
  ASSERT_TRUE(StartEtcd(1));
  const ManualTime stopped;  // As of a process that was stopped: it does not see its lease end.
  Candidate first("ps-0", etcd_->endpoints(), 3'600'000, &stopped);
  const int64_t term = first.AwaitElected().term;
  ASSERT_TRUE(first->Save(term, StateOf(1)).ok());
  Candidate second("ps-1", etcd_->endpoints(), 3'600'000, &stopped);
  ASSERT_TRUE(client_->Revoke(Leader()->lease).ok());
  const Candidate::Told told = second.AwaitElected();
  EXPECT_EQ(told.state->epoch(), 1u);
  EXPECT_TRUE(first->Leads(term));
  const absl::Status saved = first->Save(term, StateOf(7));
  EXPECT_EQ(saved.code(), absl::StatusCode::kAborted) << saved;
  EXPECT_EQ(SavedEpoch(), 1u);
  EXPECT_FALSE(first->Leads(term));
  EXPECT_EQ(first.AwaitDeposed().code(), absl::StatusCode::kAborted);
  ASSERT_TRUE(second->Save(told.term, StateOf(2)).ok());
  EXPECT_EQ(first->Save(term, StateOf(8)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(SavedEpoch(), 2u);
}

TEST_F(ElectionTest, OneWhoseStateWasChangedByHandStops) {
  ASSERT_TRUE(StartEtcd(1));
  Candidate candidate("ps-0", etcd_->endpoints(), 3'600'000);
  const int64_t term = candidate.AwaitElected().term;
  ASSERT_TRUE(candidate->Save(term, StateOf(1)).ok());
  ASSERT_TRUE(client_->PutIf({}, EtcdStateKey("test"), StateOf(5).SerializeAsString(), 0).ok());
  EXPECT_EQ(candidate->Save(term, StateOf(2)).code(), absl::StatusCode::kAborted);
  EXPECT_THAT(candidate.AwaitDeposed().message(), HasSubstr("written by another process"));
  EXPECT_EQ(candidate.AwaitElected().state->epoch(), 5u);
}

TEST_F(ElectionTest, ASaveWhoseAnswerWasLostIsFollowedByTheNext) {
  ASSERT_TRUE(StartEtcd(1));
  auto proxy = chaos::TcpProxy::Start();
  ASSERT_TRUE(proxy.ok()) << proxy.status();
  (*proxy)->SetTarget(etcd_->port(0));
  const ManualTime stopped;
  Candidate candidate("ps-0", {(*proxy)->address()}, 3'600'000, &stopped);
  const int64_t term = candidate.AwaitElected().term;
  ASSERT_TRUE(candidate->Save(term, StateOf(1)).ok());
  (*proxy)->SetLink({.holds_replies = true});
  const absl::Status late = candidate->Save(term, StateOf(2));
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;
  EXPECT_EQ(SavedEpoch(), 2u);
  EXPECT_TRUE(candidate->Leads(term));
  (*proxy)->SetLink({});
  const absl::Status saved = candidate.SaveAtLast(term, StateOf(3));
  EXPECT_TRUE(saved.ok()) << saved;
  EXPECT_EQ(SavedEpoch(), 3u);
  EXPECT_TRUE(candidate->Leads(term));
}

TEST_F(ElectionTest, ASaveThatIsRepeatedAtAnotherMemberIsDoneOnce) {
  ASSERT_TRUE(StartEtcd(1));
  auto proxy = chaos::TcpProxy::Start();
  ASSERT_TRUE(proxy.ok()) << proxy.status();
  (*proxy)->SetTarget(etcd_->port(0));
  const ManualTime stopped;
  Candidate candidate("ps-0", {(*proxy)->address(), etcd_->endpoint(0)}, 3'600'000, &stopped);
  const int64_t term = candidate.AwaitElected().term;
  ASSERT_TRUE(candidate->Save(term, StateOf(1)).ok());
  (*proxy)->SetLink({.holds_replies = true});
  EXPECT_TRUE(candidate->Save(term, StateOf(2)).ok());
  EXPECT_TRUE(candidate->Save(term, StateOf(3)).ok());
  EXPECT_EQ(SavedEpoch(), 3u);
  EXPECT_TRUE(candidate->Leads(term));
}

TEST_F(ElectionTest, WhileEtcdIsAwayBrieflyTheTermGoesOn) {
  ASSERT_TRUE(StartEtcd(1));
  const ManualTime stopped;
  Candidate candidate("ps-0", etcd_->endpoints(), 3'600'000, &stopped);
  const int64_t term = candidate.AwaitElected().term;
  ASSERT_TRUE(candidate->Save(term, StateOf(1)).ok());
  etcd_->Kill(0);
  const absl::Status away = candidate->Save(term, StateOf(2));
  EXPECT_EQ(away.code(), absl::StatusCode::kUnavailable) << away;
  EXPECT_THAT(away.message(), HasSubstr(etcd_->endpoint(0)));
  EXPECT_TRUE(candidate->Leads(term));
  ASSERT_TRUE(etcd_->Restart(0).ok());
  EXPECT_TRUE(candidate.SaveAtLast(term, StateOf(3)).ok());
  EXPECT_EQ(SavedEpoch(), 3u);
  EXPECT_TRUE(candidate->Leads(term));
  EXPECT_FALSE(candidate.was_deposed());
}

TEST_F(ElectionTest, WhileEtcdIsAwayForTooLongNoneServesAndThenOneAgain) {
  ASSERT_TRUE(StartEtcd(1));
  ManualTime time;
  Candidate candidate("ps-0", etcd_->endpoints(), kShortLeaseMs, &time);
  const int64_t term = candidate.AwaitElected().term;
  ASSERT_TRUE(candidate.SaveAtLast(term, StateOf(1)).ok());
  etcd_->Kill(0);
  EXPECT_FALSE(candidate.AwaitTrouble().ok());
  EXPECT_TRUE(candidate->Leads(term));
  time.AdvanceMs(60'000);
  EXPECT_FALSE(candidate->Leads(term));
  const absl::Status reason = candidate.AwaitDeposed();
  EXPECT_EQ(reason.code(), absl::StatusCode::kDeadlineExceeded) << reason;
  EXPECT_THAT(reason.message(), HasSubstr(etcd_->endpoint(0)));
  EXPECT_THAT(candidate.AwaitTrouble().message(), HasSubstr(etcd_->endpoint(0)));
  ASSERT_TRUE(etcd_->Restart(0).ok());
  const Candidate::Told told = candidate.AwaitElected();  // Once etcd has seen the former lease end.
  EXPECT_GT(told.term, term);
  ASSERT_TRUE(told.state.has_value());
  EXPECT_EQ(told.state->epoch(), 1u);
}

TEST_F(ElectionTest, TheTermGoesOnWhenTheLeaderOfEtcdDies) {
  ASSERT_TRUE(StartEtcd(3));
  const ManualTime stopped;
  Candidate first("ps-0", etcd_->endpoints(), 3'600'000, &stopped);
  const int64_t term = first.AwaitElected().term;
  Candidate second("ps-1", etcd_->endpoints(), 3'600'000, &stopped);
  uint64_t epoch = 0;
  ASSERT_TRUE(first.SaveAtLast(term, StateOf(++epoch)).ok());
  for (int round = 0; round < 2; ++round) {
    const auto leader = etcd_->AwaitLeader();
    ASSERT_TRUE(leader.ok()) << leader.status();
    etcd_->Kill(*leader);
    for (int i = 0; i < 3; ++i) {
      const absl::Status saved = first.SaveAtLast(term, StateOf(++epoch));
      ASSERT_TRUE(saved.ok()) << saved;
    }
    ASSERT_TRUE(etcd_->Restart(*leader).ok());
    ASSERT_TRUE(etcd_->AwaitLeader().ok());
    ASSERT_TRUE(first.SaveAtLast(term, StateOf(++epoch)).ok());
  }
  EXPECT_TRUE(first->Leads(term));
  EXPECT_FALSE(first.was_deposed());
  EXPECT_FALSE(second.was_elected());
  first->Stop();
  const Candidate::Told told = second.AwaitElected();
  ASSERT_TRUE(told.state.has_value());
  EXPECT_EQ(told.state->epoch(), epoch);
}

TEST_F(ElectionTest, OneThatCannotServeLeavesThePlaceToOthers) {
  ASSERT_TRUE(StartEtcd(1));
  Candidate refuses("ps-0", etcd_->endpoints(), 3'600'000, nullptr, /*refusals=*/1'000'000);
  EXPECT_THAT(refuses.AwaitTrouble().message(), AllOf(HasSubstr("was elected"), HasSubstr("does not want to")));
  Candidate second("ps-1", etcd_->endpoints(), 3'600'000);
  const Candidate::Told told = second.AwaitElected();
  EXPECT_TRUE(second->Leads(told.term));
  EXPECT_FALSE(refuses.was_deposed());
}

TEST_F(ElectionTest, AStateThatIsNoneIsNotServed) {
  ASSERT_TRUE(StartEtcd(1));
  ASSERT_TRUE(client_->PutIf({}, EtcdStateKey("test"), "\xff\xff not a state", 0).ok());
  Candidate candidate("ps-0", etcd_->endpoints(), 60'000);
  const absl::Status trouble = candidate.AwaitTrouble();
  EXPECT_EQ(trouble.code(), absl::StatusCode::kDataLoss) << trouble;
  EXPECT_THAT(trouble.message(), HasSubstr("lodestone/test/state"));
  EXPECT_FALSE(candidate.was_elected());
}

TEST_F(ElectionTest, AnEndpointThatIsNotThereIsNamed) {
  auto refuses = chaos::TcpProxy::Start();
  ASSERT_TRUE(refuses.ok()) << refuses.status();
  Candidate candidate("ps-0", {(*refuses)->address()}, 60'000);
  const absl::Status trouble = candidate.AwaitTrouble();
  EXPECT_EQ(trouble.code(), absl::StatusCode::kUnavailable) << trouble;
  EXPECT_THAT(trouble.message(), HasSubstr(absl::StrCat("etcd ", (*refuses)->address(), ": ")));
}

TEST_F(ElectionTest, TheLargestClusterFitsAndAStateThatDoesNotIsRefused) {
  ASSERT_TRUE(StartEtcd(1));
  Candidate candidate("ps-0", etcd_->endpoints(), 3'600'000);
  const int64_t term = candidate.AwaitElected().term;
  // The greatest numbers that a configuration allows.
  constexpr int kShards = 65536, kServers = 1024, kWorkers = 4096;
  v1::CoordinatorState state = StateOf(1'000'000);
  state.set_shards(kShards);
  for (int shard = 0; shard < kShards; ++shard) {
    state.add_owners(kServers - 1);
    state.add_followers(kServers);
    state.add_in_sync(true);
    state.add_terms(1'000'000);
  }
  for (int place = 0; place < kServers + kWorkers; ++place) {
    v1::CoordinatorState::Place* const holder = state.add_places();
    holder->set_role(place < kServers ? v1::ROLE_SERVER : v1::ROLE_WORKER);
    holder->set_index(place);
    holder->set_incarnation(~uint64_t{0});
    holder->set_token(~uint64_t{0});
    holder->set_address(place < kServers ? "a-machine-with-a-long-name.example.org:65535" : "");
    holder->set_peer("a-machine-with-a-long-name.example.org pid 4194304");
  }
  EXPECT_TRUE(candidate.SaveAtLast(term, state).ok()) << state.ByteSizeLong();

  state.set_cluster(std::string(limits::kEtcdStateBytesMax, 'x'));
  const absl::Status refused = candidate->Save(term, state);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_THAT(refused.message(), AllOf(HasSubstr("1500000"), HasSubstr("cluster.shards")));
  EXPECT_EQ(SavedEpoch(), 1'000'000u);
  // What is allowed is also what etcd takes.
  state.clear_places();
  state.set_cluster(std::string(limits::kEtcdStateBytesMax - (state.ByteSizeLong() - state.cluster().size()), 'x'));
  ASSERT_LE(state.ByteSizeLong(), limits::kEtcdStateBytesMax);
  const absl::Status longest = candidate.SaveAtLast(term, state);
  EXPECT_TRUE(longest.ok()) << longest;
}

}  // namespace
}  // namespace lodestone::server
