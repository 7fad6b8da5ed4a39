// The comparison of owned shards with all of their followers' copies, by checksums of their contents
// (Admin.VerifyReplicas).
//
// Thread-safe. No lock of the caller's may be held that `ask` takes. The store must outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/types.h"
#include "proto/admin.pb.h"
#include "proto/replication.pb.h"
#include "server/replication/follow_stream.h"

namespace lodestone::server {

class Store;

class ReplicaVerifier {
 public:
  // The follower that a question was sent to.
  struct Asked {
    uint32_t server = 0;
    const FollowStream* stream = nullptr;  // Null: it has not caught up, and was asked nothing.
  };
  // Sends an item to the followers of a shard that have caught up, after all updates so far, and says which followers
  // there are. Called on the shard's executor.
  using Ask = std::function<std::vector<Asked>(ShardId shard, v1::FollowItem item)>;

  ReplicaVerifier(Store* store, Ask ask) : store_(store), ask_(std::move(ask)) {}

  // Compares all owned shards, one after the other. UNAVAILABLE after Shutdown.
  absl::StatusOr<v1::VerifyReplicasResponse> Verify();

  // A follower has answered a question; a stream is gone, and answers nothing any more.
  void OnAnswer(const FollowStream* stream, const v1::FollowAcks::Checksum& answer);
  void OnClosed(const FollowStream* stream);
  // Ends the waits for answers, and all later ones.
  void Shutdown();

 private:
  struct Answer {
    std::optional<v1::FollowAcks::Checksum> checksum;
    bool lost = false;  // None will come.
  };
  using Question = std::map<const FollowStream*, Answer>;  // By whom it was sent to.

  // For each follower one; one that says so if none has caught up.
  std::vector<v1::VerifyReplicasResponse::ShardReplicas> VerifyShard(ShardId shard);
  // The answers to question `id`, which is over then: all of them, or those that have come in time.
  Question AwaitAnswers(uint64_t id);

  Store* const store_;
  const Ask ask_;

  Mutex mu_;
  CondVar changed_;
  std::map<uint64_t, Question> questions_ ABSL_GUARDED_BY(mu_);  // By id.
  uint64_t next_question_ ABSL_GUARDED_BY(mu_) = 1;
  bool shut_down_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace lodestone::server
