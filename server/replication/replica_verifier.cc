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
    for (auto& replicas : VerifyShard(shard)) *response.add_shards() = std::move(replicas);
    MutexLock lock(&mu_);
    if (shut_down_) return absl::UnavailableError("the ps shuts down");
  }
  return response;
}

std::vector<v1::VerifyReplicasResponse::ShardReplicas> ReplicaVerifier::VerifyShard(ShardId shard) {
  v1::VerifyReplicasResponse::ShardReplicas result;
  result.set_shard(shard);
  std::optional<Shard::State> state;
  std::vector<Incarnation> open;
  std::vector<Asked> asked;
  uint64_t id = 0;
  store_->shards().Run(shard, [&](Shard* owner) {
    MutexLock lock(&mu_);
    id = next_question_++;
    v1::FollowItem item;
    item.mutable_checksum()->set_id(id);
    item.mutable_checksum()->set_shard(shard);
    open = store_->sessions().known().open;
    item.mutable_checksum()->mutable_workers()->Add(open.begin(), open.end());
    item.mutable_checksum()->set_has_workers(true);
    asked = ask_(shard, std::move(item));  // After all updates up to the state's version.
    for (const Asked& one : asked) {
      if (one.stream != nullptr) questions_[id][one.stream];
    }
    if (questions_.contains(id)) state = owner->CollectState(nullptr);
  });
  if (!state.has_value()) {
    result.set_missing("no follower has caught up with it");
    return {result};
  }
  result.set_version(state->version);
  const uint64_t values = ValuesChecksum(*state);  // While the followers do the same.
  const Question answers = AwaitAnswers(id);
  std::vector<v1::VerifyReplicasResponse::ShardReplicas> results;
  for (const Asked& one : asked) {
    v1::VerifyReplicasResponse::ShardReplicas& of_follower = results.emplace_back(result);
    of_follower.set_follower(one.server);
    if (one.stream == nullptr) {
      of_follower.set_missing(absl::StrCat("ps ", one.server, " has not caught up with it"));
      continue;
    }
    const std::optional<v1::FollowAcks::Checksum>& answer = answers.at(one.stream).checksum;
    if (!answer.has_value()) {
      of_follower.set_missing(absl::StrCat("ps ", one.server, " did not answer"));
      continue;
    }
    std::vector<Incarnation> workers = open;
    std::erase_if(workers, [&](Incarnation worker) { return absl::c_binary_search(answer->over(), worker); });
    of_follower.set_owner_checksum(values + WindowsChecksum(*state, answer->by_workers() ? &workers : nullptr));
    of_follower.set_follower_checksum(answer->checksum());
  }
  return results;
}

ReplicaVerifier::Question ReplicaVerifier::AwaitAnswers(uint64_t id) {
  const auto deadline = std::chrono::steady_clock::now() + kAnswerTimeout;
  MutexLock lock(&mu_);
  const Question& question = questions_[id];
  const auto waits = [](const auto& of) { return !of.second.checksum.has_value() && !of.second.lost; };
  while (!shut_down_ && absl::c_any_of(question, waits)) {
    if (changed_.WaitUntil(&mu_, deadline)) continue;
    if (std::chrono::steady_clock::now() >= deadline) break;
  }
  Question answers = question;
  questions_.erase(id);
  return answers;
}

void ReplicaVerifier::OnAnswer(const FollowStream* stream, const v1::FollowAcks::Checksum& answer) {
  MutexLock lock(&mu_);
  const auto question = questions_.find(answer.id());
  if (question == questions_.end()) return;
  const auto of = question->second.find(stream);
  if (of == question->second.end()) return;
  of->second.checksum = answer;
  changed_.NotifyAll();
}

void ReplicaVerifier::OnClosed(const FollowStream* stream) {
  MutexLock lock(&mu_);
  for (auto& [id, question] : questions_) {
    if (const auto of = question.find(stream); of != question.end()) of->second.lost = true;
  }
  changed_.NotifyAll();
}

void ReplicaVerifier::Shutdown() {
  MutexLock lock(&mu_);
  shut_down_ = true;
  changed_.NotifyAll();
}

}  // namespace lodestone::server
