#include "server/replication/replica_verifier.h"

#include <chrono>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "server/shard/content_checksum.h"
#include "server/shard/shard.h"
#include "server/store/store.h"

namespace lodestone::server {
namespace {

constexpr std::chrono::seconds kAnswerTimeout(60);

}  // namespace

absl::StatusOr<v1::VerifyReplicasResponse> ReplicaVerifier::Verify() {
  v1::VerifyReplicasResponse response;
  for (const ShardId shard : store_->shards().owned()) {
    *response.add_shards() = VerifyShard(shard);
    MutexLock lock(&mu_);
    if (shut_down_) return absl::UnavailableError("the ps shuts down");
  }
  return response;
}

v1::VerifyReplicasResponse::ShardReplicas ReplicaVerifier::VerifyShard(ShardId shard) {
  v1::VerifyReplicasResponse::ShardReplicas result;
  result.set_shard(shard);
  std::optional<Shard::State> state;
  std::vector<Incarnation> workers;
  uint64_t id = 0;
  store_->shards().Run(shard, [&](Shard* owner) {
    MutexLock lock(&mu_);
    id = next_question_++;
    v1::FollowItem item;
    item.mutable_checksum()->set_id(id);
    item.mutable_checksum()->set_shard(shard);
    workers = store_->sessions().known().open;
    item.mutable_checksum()->mutable_workers()->Add(workers.begin(), workers.end());
    item.mutable_checksum()->set_has_workers(true);
    const std::optional<Asked> asked = ask_(shard, std::move(item));  // After all updates up to the state's version.
    if (!asked.has_value()) return;
    questions_[id].stream = asked->stream;
    result.set_follower(asked->server);
    state = owner->CollectState(nullptr);
  });
  if (!state.has_value()) {
    result.set_missing("no follower has caught up with it");
    return result;
  }
  result.set_version(state->version);
  const uint64_t values = ValuesChecksum(*state);  // While the follower does the same.
  const std::optional<v1::FollowAcks::Checksum> answer = AwaitAnswer(id);
  if (!answer.has_value()) {
    result.set_missing(absl::StrCat("ps ", result.follower(), " did not answer"));
    return result;
  }
  std::erase_if(workers, [&](Incarnation worker) { return absl::c_binary_search(answer->over(), worker); });
  result.set_owner_checksum(values + WindowsChecksum(*state, answer->by_workers() ? &workers : nullptr));
  result.set_follower_checksum(answer->checksum());
  return result;
}

std::optional<v1::FollowAcks::Checksum> ReplicaVerifier::AwaitAnswer(uint64_t id) {
  const auto deadline = std::chrono::steady_clock::now() + kAnswerTimeout;
  MutexLock lock(&mu_);
  const Question& question = questions_[id];
  while (!shut_down_ && !question.answer.has_value() && !question.lost) {
    if (changed_.WaitUntil(&mu_, deadline)) continue;
    if (std::chrono::steady_clock::now() >= deadline) break;
  }
  std::optional<v1::FollowAcks::Checksum> answer = question.answer;
  questions_.erase(id);
  return answer;
}

void ReplicaVerifier::OnAnswer(const FollowStream* stream, const v1::FollowAcks::Checksum& answer) {
  MutexLock lock(&mu_);
  const auto question = questions_.find(answer.id());
  if (question == questions_.end() || question->second.stream != stream) return;
  question->second.answer = answer;
  changed_.NotifyAll();
}

void ReplicaVerifier::OnClosed(const FollowStream* stream) {
  MutexLock lock(&mu_);
  for (auto& [id, question] : questions_) question.lost |= question.stream == stream;
  changed_.NotifyAll();
}

void ReplicaVerifier::Shutdown() {
  MutexLock lock(&mu_);
  shut_down_ = true;
  changed_.NotifyAll();
}

}  // namespace lodestone::server
