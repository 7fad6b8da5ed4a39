// A cluster of servers, for tests of the client: a coordinator and some ps that add what is pushed to values that start
// from zero, exactly once per (incarnation, sequence, shard), and that misbehave as they are told.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/types.h"
#include "common/wire/message.h"
#include "common/wire/shard_map.h"
#include "proto/config.pb.h"
#include "proto/coordinator.pb.h"
#include "proto/parameter_server.pb.h"
#include "tests/worker/rpc/fake_server.h"

namespace lodestone::worker {

// What is done to one call.
enum class Fault {
  kNone,
  kRefuse,     // UNAVAILABLE, and nothing is done.
  kForget,     // FAILED_PRECONDITION, and nothing is done.
  kTurnBack,   // ABORTED, and nothing is done.
  kSwallow,    // Nothing is done; no answer ever.
  kDropReply,  // The work is done; the caller gets UNAVAILABLE.
  kSilence,    // The work is done; no answer ever.
  kHold,       // The work is done; the answer waits for ReleaseHeld.
  kGarbage,    // The work is done; the answer is bytes that are no message.
  kShort,      // The work is done; the answer lacks its last shard, value or block.
  kStrange,    // The work is done; the answer to a push says that a shard more than it touches is a duplicate.
};

class FakeCluster {
 public:
  FakeCluster(uint32_t servers, uint32_t shards);
  ~FakeCluster();

  // The configuration of a worker of this cluster, with short timeouts.
  v1::Config config() const;

  // Decides what is done to call number `call`, from 1, of `method` at `server`. Called under a lock.
  using Faults = std::function<Fault(uint32_t server, const std::string& method, uint64_t call)>;
  void SetFaults(Faults faults);
  // Answers what is held, the latest first.
  void ReleaseHeld();

  // Sends every subscriber of `server` the current values of its shards, as changes from what it was sent before; with
  // `gap`, as changes from a version that it never had.
  void Broadcast(uint32_t server, bool gap = false);
  // Ends the streams of `server`.
  void EndStreams(uint32_t server);

  // Starts `server` at another address, which the next heartbeats tell. Its former place answers nothing any more, and
  // listens on if `still_listens`.
  void Move(uint32_t server, bool still_listens = false);
  // Lets two servers take over each other's addresses.
  void Swap(uint32_t one, uint32_t other);
  // Stops `server`, waits for `meanwhile`, and starts it again where it was.
  void Restart(uint32_t server, const std::function<void()>& meanwhile);
  // Whether Route says that `server` is away.
  void SetAway(uint32_t server, bool away);
  // Gives shards other owners, with a new epoch as their term; what they hold they keep.
  void MoveShards(const std::map<ShardId, uint32_t>& owners);
  // The positions that subscribers hold tell the servers nothing any more: all get anchors.
  void ForgetHistory();

  // A request of Push as it came, but for parts of several shards, of which there is a part for each.
  struct Seen {
    uint32_t server = 0;
    std::string bytes;
    v1::PushRequest header;
    std::string peer;
  };
  std::vector<Seen> pushes() const;
  // The headers of the requests of Pull as they came, each with its server.
  std::vector<std::pair<uint32_t, v1::PullRequest>> pulls() const;
  std::vector<v1::HeartbeatRequest> heartbeats() const;
  // The last request of Subscribe at `server`, and how many anchors of shards were sent in all.
  v1::SubscribeRequest subscribed(uint32_t server) const;
  uint64_t anchors() const;
  // Calls of `method` at `server` so far, and waiting until they are that many.
  uint64_t calls(uint32_t server, const std::string& method) const;
  void AwaitCalls(uint32_t server, const std::string& method, uint64_t calls);

  // What the servers do with lists of keys.
  FakeLists& lists() { return lists_; }

  float ValueOf(TableId table, uint64_t element) const;
  std::vector<float> RowOf(TableId table, Key key) const;

 private:
  struct Stream {
    uint32_t server = 0;
    std::shared_ptr<FakeCall> call;
    std::set<TableId> tables;
    std::map<ShardId, Version> sent;
  };
  struct Table {
    v1::TableSpec spec;
    BlockLayout layout;
    std::map<BlockIndex, std::vector<float>> blocks;
    std::map<BlockIndex, Version> block_versions;
    std::map<Key, std::vector<float>> rows;
  };

  // A place where one of the servers listens.
  struct Place {
    uint32_t server = 0;
    bool answers = true;
  };

  // Starts a server in a new place, at a free port or at `port`.
  void Listen(uint32_t server, int port = 0);
  void Handle(size_t place, std::shared_ptr<FakeCall> call);
  // Replaces parts of several shards by parts of one, and `payload` by theirs. `keys_in_parts`: or else there are none
  // in the payload; `has_values`: it is of a push. The payload is taken from the front of `from`.
  void MakePlain(google::protobuf::RepeatedPtrField<v1::Part>* parts, bool keys_in_parts, bool has_values,
                 ByteView* from, std::string* payload) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The answer to a call, after its work; nullopt for one that stays open.
  std::optional<grpc::ByteBuffer> Work(uint32_t server, const std::shared_ptr<FakeCall>& call, Fault fault)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  grpc::ByteBuffer EnsureTables(uint32_t server, const grpc::ByteBuffer& request, bool shorten)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<grpc::ByteBuffer> Push(uint32_t server, FakeCall* call, Fault fault) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<grpc::ByteBuffer> Pull(uint32_t server, FakeCall* call, bool shorten)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes the part's keys from `keys`, and the rest from `payload`; they may be the same.
  std::optional<grpc::ByteBuffer> PushPull(uint32_t server, FakeCall* call, bool shorten)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Applies a push whose keys and values are taken from the fronts of these, which may be the same.
  v1::PushResponse Apply(const v1::PushRequest& request, ByteView* keys, ByteView* values)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Answers a pull of these keys, all of them.
  v1::PullResponse Read(const v1::PullRequest& request, ByteView keys, std::vector<float>* values)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ApplyPart(const v1::Part& part, ByteView* keys, ByteView* payload, bool apply)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The shards that `stream` was sent nothing of come as anchors.
  void SendDelta(Stream* stream, bool gap) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Subscribe(uint32_t server, const std::shared_ptr<FakeCall>& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Turns a push or a pull with these parts back, and returns true, if `server` does not know its worker or does not
  // own all that it touches.
  bool TurnBack(uint32_t server, Incarnation worker, const google::protobuf::RepeatedPtrField<v1::Part>& parts,
                FakeCall* call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  v1::RouteResponse Route() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint32_t shards_;
  FakeLists lists_;  // Synchronises itself.

  mutable Mutex mu_;
  CondVar called_;
  Faults faults_ ABSL_GUARDED_BY(mu_);
  uint64_t epoch_ ABSL_GUARDED_BY(mu_) = 1;
  std::vector<Place> places_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> addresses_ ABSL_GUARDED_BY(mu_);  // By server.
  std::vector<uint32_t> owners_ ABSL_GUARDED_BY(mu_);        // By shard, as all below.
  std::vector<uint64_t> terms_ ABSL_GUARDED_BY(mu_);
  std::vector<Version> term_starts_ ABSL_GUARDED_BY(mu_);  // Versions when the terms began.
  std::set<std::pair<uint32_t, Incarnation>> sessions_ ABSL_GUARDED_BY(mu_);
  std::set<uint32_t> away_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<uint32_t, std::string>, uint64_t> calls_ ABSL_GUARDED_BY(mu_);
  std::vector<std::pair<std::shared_ptr<FakeCall>, grpc::ByteBuffer>> held_ ABSL_GUARDED_BY(mu_);
  std::vector<Stream> streams_ ABSL_GUARDED_BY(mu_);
  std::map<uint32_t, v1::SubscribeRequest> subscribed_ ABSL_GUARDED_BY(mu_);
  uint64_t anchors_ ABSL_GUARDED_BY(mu_) = 0;
  bool history_ ABSL_GUARDED_BY(mu_) = true;
  std::vector<Seen> pushes_ ABSL_GUARDED_BY(mu_);
  std::vector<std::pair<uint32_t, v1::PullRequest>> pulls_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::HeartbeatRequest> heartbeats_ ABSL_GUARDED_BY(mu_);
  std::map<TableId, Table> tables_ ABSL_GUARDED_BY(mu_);
  std::vector<Version> versions_ ABSL_GUARDED_BY(mu_);  // By shard.
  std::set<std::tuple<Incarnation, Sequence, ShardId>> marks_ ABSL_GUARDED_BY(mu_);
  uint32_t joined_ ABSL_GUARDED_BY(mu_) = 0;

  // Last: their calls use all of the above.
  std::map<uint32_t, std::unique_ptr<FakeServer>> servers_;
  std::vector<std::unique_ptr<FakeServer>> former_servers_;
};

// All bytes of `buffer`.
std::string BytesOf(const grpc::ByteBuffer& buffer);

}  // namespace lodestone::worker
