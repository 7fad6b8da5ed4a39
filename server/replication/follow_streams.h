// The streams of the followers of this ps, from their opening to their end: who may follow, what a stream begins with,
// and which there are.
//
// Thread-safe. The replicator and the store must outlive it; it must outlive the gRPC server that its streams are of.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "proto/replication.pb.h"
#include "server/auth/access.h"
#include "server/replication/bootstrap.h"
#include "server/replication/follow_stream.h"

namespace lodestone::server {

class Replicator;
class Store;

class FollowStreams {
 public:
  struct Options {
    std::string cluster;
    uint32_t shards = 1;
    uint64_t seed = 1;
    uint32_t server = 0;       // This ps's index.
    Access* access = nullptr;  // Checks the caller of a follower; null: any may follow.
    Bootstrap::Sources sources;
  };
  FollowStreams(Options options, Replicator* replicator, const Store* store)
      : options_(std::move(options)), replicator_(replicator), store_(store) {}

  // Replication.Follow, over gRPC, or another wire.
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Open(grpc::CallbackServerContext* context);
  std::shared_ptr<FollowStream> Open(FollowStream::Wire* wire);
  // A stream's first message. After an error the stream is to end with it.
  absl::Status OnStart(const std::shared_ptr<FollowStream>& stream, const v1::FollowStart& start);
  void OnClosed(const FollowStream* stream);

  bool empty() const;
  // Queues a piece for all streams that have begun.
  void Queue(const FollowPieceRef& piece, QueuedSends* sends) const;
  // The end of a ps's streams that have dropped `shard`, which it is to follow again: it opens new ones.
  void EndDropped(uint32_t server, ShardId shard) const;
  // Ends those that have not begun for so long.
  void EndSilent(int64_t silent_ms_max);
  // Ends all, and takes no more.
  void Shutdown();
  // Waits until bootstraps have ended. REQUIRES: Shutdown.
  void Join();

 private:
  void Begin(const std::shared_ptr<FollowStream>& stream, absl::Status end);
  // FAILED_PRECONDITION if `start` is of another cluster; INVALID_ARGUMENT if it comes twice; UNAVAILABLE if this ps
  // does not own what is followed.
  absl::Status CheckStart(const FollowStream& stream, const v1::FollowStart& start) const;
  std::vector<std::shared_ptr<FollowStream>> streams() const;

  const Options options_;
  Replicator* const replicator_;
  const Store* const store_;

  mutable Mutex mu_;
  std::vector<std::shared_ptr<FollowStream>> streams_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<Bootstrap>> bootstraps_ ABSL_GUARDED_BY(mu_);
  bool shut_down_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace lodestone::server
