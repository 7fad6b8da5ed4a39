// The link of a follower to one owner: a connection, and a thread that takes what comes. Used by follower.cc.
//
// Thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/base/simulation.h"
#include "common/base/time_source.h"
#include "common/base/types.h"
#include "common/wire/message.h"
#include "grpcpp/support/byte_buffer.h"
#include "proto/admin.pb.h"
#include "proto/replication.pb.h"
#include "server/replication/follow_call.h"
#include "server/replication/follower.h"
#include "server/replication/grpc_follow_call.h"
#include "server/replication/logged_positions.h"
#include "server/replication/newest_updates.h"
#include "server/store/store.h"

namespace lodestone::server {

class Follower::Link {
 public:
  Link(const Options& options, Store* store, NewestUpdates* newest, uint32_t owner, std::string address,
       Incarnation owner_incarnation, std::vector<ShardId> shards, std::vector<ShardId> learns)
      : options_(options),
        store_(store),
        newest_(newest),
        owner_(owner),
        address_(std::move(address)),
        owner_incarnation_(owner_incarnation),
        shards_(std::move(shards)),
        learns_(std::move(learns)),
        place_(options.open ? options.open(address_) : OverGrpc(address_, options.credentials)),
        incarnation_(options.incarnation()),
        confirmations_([this] { ConfirmLogged(); }),
        thread_([this] { Run(); }) {}
  ~Link() { Stop(); }

  // Whether it is what follows `shards`, and learns `learns` of them. One that has come to follow what it learnt is.
  bool Is(const std::string& address, Incarnation incarnation, const std::vector<ShardId>& shards,
          const std::vector<ShardId>& learns) const {
    return address_ == address && owner_incarnation_ == incarnation && shards_ == shards &&
           std::includes(learns_.begin(), learns_.end(), learns.begin(), learns.end()) &&
           incarnation_ == options_.incarnation();
  }
  void Stop() {
    {
      MutexLock lock(&mu_);
      if (stopping_) return;
      stopping_ = true;
      if (call_ != nullptr) call_->TryCancel();
      changed_.NotifyAll();
    }
    thread_.join();
    logged_->Stop();
    confirmations_.join();
  }
  // Confirms what waited for the disk and is on it now.
  void ConfirmOnDisk();
  void FillStatus(v1::StatusResponse* status) const;

 private:
  void Run();
  // Where the shards are that are whole here. On the thread that takes what comes.
  LoggedPositions::Positions PositionsOf(std::span<const ShardId> shards) const;
  // Adds to `acks` those of `positions` of which the state is on the disk and the updates are in the log; the others
  // are confirmed later.
  void AddPositions(const LoggedPositions::Positions& positions, v1::FollowAcks* acks)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_);
  // Confirms what had to wait for the log.
  void ConfirmLogged();
  void Write(const v1::FollowRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_);
  bool OnDisk(ShardId shard) const { return options_.on_disk == nullptr || options_.on_disk(shard); }
  // Until the stream ends, and why.
  absl::Status RunStream();
  absl::Status TakeMessage(const grpc::ByteBuffer& message, v1::FollowAcks* acks);
  absl::Status TakeItem(const v1::FollowItem& item, const Payload& payload, v1::FollowAcks* acks);
  absl::Status TakeRecord(const v1::LogRecord& record, const Payload& payload);
  absl::Status TakeCaughtUp(const v1::FollowItem::CaughtUp& caught_up);
  absl::Status EndState(const v1::ShardPosition& end);
  void TakeChecksum(const v1::FollowItem::ChecksumRequest& question, v1::FollowAcks* acks);
  absl::Status CheckFollowed(ShardId shard) const;
  v1::ShardPosition PositionOf(ShardId shard) const;
  bool Pause(int64_t ms);

  const Options& options_;
  Store* const store_;
  NewestUpdates* const newest_;
  const uint32_t owner_;
  const std::string address_;
  const Incarnation owner_incarnation_;
  const std::vector<ShardId> shards_;         // Ascending.
  const std::vector<ShardId> learns_;         // Those of them that it learnt by the map that this began with.
  const std::unique_ptr<FollowPlace> place_;  // Used by the thread.
  const Incarnation incarnation_;             // Of this ps.
  const SteadyTime time_;

  // Owned by the thread.
  std::vector<uint8_t> copy_;
  std::vector<ShardId> touched_;     // By the message that is being taken.
  std::optional<ShardId> state_of_;  // Whose state is coming.
  std::set<ShardId> whole_state_;    // Whose state is to come, whatever is here.
  std::set<ShardId> catching_up_;    // That get what they lack: they are confirmed when all of it is here.

  Mutex write_mu_;
  FollowCall* stream_ ABSL_GUARDED_BY(write_mu_) = nullptr;  // Open, and takes what is written.
  // By shard: to be confirmed when its state is.
  std::map<ShardId, v1::ShardPosition> not_on_disk_ ABSL_GUARDED_BY(write_mu_);

  // Synchronises itself.
  const std::shared_ptr<LoggedPositions> logged_ = std::make_shared<LoggedPositions>();

  mutable Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  FollowCall* call_ ABSL_GUARDED_BY(mu_) = nullptr;  // Whose stream is open.
  std::string broken_ ABSL_GUARDED_BY(mu_) = "it has not answered yet";
  int64_t broken_since_ms_ ABSL_GUARDED_BY(mu_) = time_.NowMs();

  Thread confirmations_;  // Runs ConfirmLogged. It and the next one use all of the above.
  Thread thread_;
};

}  // namespace lodestone::server
