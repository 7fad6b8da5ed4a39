// A simulated client: pushes with several in flight, each resent until it is acknowledged, and pulls what was
// acknowledged. The window of sequences (PushWindow), the division of pushes that were turned back (SplitPush), the
// pauses after them (Rerouter) and the retries (Retry) are the real ones; what connects them tells ServerChannel,
// Pusher and LeaseClient again.
//
// Used by one thread; runs on fibers of its process.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/retry.h"
#include "common/base/simulation.h"
#include "common/base/timer.h"
#include "common/wire/message.h"
#include "common/wire/shard_map.h"
#include "proto/parameter_server.pb.h"
#include "proto/table.pb.h"
#include "tests/simulation/ledger.h"
#include "tests/simulation/network.h"
#include "tests/simulation/ps.h"
#include "worker/client/push_window.h"
#include "worker/client/rerouter.h"
#include "worker/rpc/server_channel.h"

namespace lodestone::simulation {

// The table that clients push to: rows of one number, to which what is pushed is added.
v1::TableSpec LedgerTable();

class Client {
 public:
  struct Options {
    uint32_t index = 0;
    std::string cluster;
    uint32_t shards = 1;
    uint32_t servers = 1;
    size_t in_flight_max = 4;
    int64_t think_us_max = 20'000;  // Between two pushes.
    int64_t call_timeout_ms = 1000;
  };
  Client(const Options& options, const ProcessRef& process, Network* network, const Directory* directory,
         Ledger* ledger);
  // REQUIRES: done(), or its process is dead; called on a fiber of the world.
  ~Client();

  // Pushes no more, and ends when all has been acknowledged.
  void Stop() { stopping_ = true; }
  bool done() const { return done_; }
  // 0: it has none now.
  Incarnation incarnation() const { return session_ == nullptr || session_->lost ? 0 : session_->incarnation; }
  const ProcessRef& process() const { return process_; }
  uint64_t resent() const { return resent_; }

 private:
  using Request = worker::ServerChannel::Request;

  // A worker's incarnation, until its lease ends.
  struct Session {
    explicit Session(size_t in_flight_max) : window(in_flight_max) {}
    Incarnation incarnation = 0;
    bool lost = false;
    worker::PushWindow window;
    std::set<uint32_t> open;  // The ps that know it.
  };
  using SessionRef = std::shared_ptr<Session>;
  // A push, until all its messages have ended.
  struct Operation {
    size_t push = 0;
    size_t messages = 0;
    bool failed = false;
  };
  // A message, or a piece of one that was divided.
  struct InFlight {
    SessionRef session;
    std::shared_ptr<Operation> operation;
    Sequence sequence = 0;
    std::shared_ptr<int> pieces;
    uint32_t server = 0;
  };
  struct Answer {
    v1::Answer header;
    Payload payload;
  };
  struct Connection {
    LineRef line;
    uint64_t last_id = 0;
    std::map<uint64_t, std::optional<absl::StatusOr<Answer>>> waiting;
  };

  void Run();
  void RunHeartbeats();
  void RunReads();
  bool Join();
  bool FetchRoute();
  void Push(const SessionRef& session);
  void Send(Request request, InFlight in_flight);
  void SendUntilDone(Request request, InFlight in_flight);
  void Lose(const SessionRef& session, const absl::Status& why);
  // Sends the parts to their owners by `map`: the first on this fiber, which goes on with it.
  void SendAgain(const ShardMap& map, Request* request, InFlight* in_flight);
  void End(const InFlight& in_flight, bool acknowledged);
  // ABORTED if the newest map gives shards of the push to others.
  absl::Status CheckOwners(const v1::PushRequest& push, uint32_t server) const;
  absl::Status OpenSession(const SessionRef& session, uint32_t server);
  absl::StatusOr<std::shared_ptr<const ShardMap>> TurnBack(const absl::Status& status, Request* request);
  // One attempt, which ends early where `wanted` says that the answer is of no use any more.
  absl::StatusOr<Answer> Attempt(uint32_t server, v1::Call call, std::span<const grpc::Slice> payload,
                                 const std::function<absl::Status()>& wanted = nullptr);
  std::shared_ptr<Connection> ConnectionTo(uint32_t server);
  static void Break(Kernel* kernel, Connection* connection, const absl::Status& status);
  void ReadSome();
  // Starts `body` on a fiber of its own.
  void Start(std::function<void()> body);

  const Options options_;
  const ProcessRef process_;
  Network* const network_;
  Kernel* const kernel_;
  const Directory* const directory_;
  Ledger* const ledger_;
  const KernelTime time_;

  bool stopping_ = false, done_ = false;
  bool ask_route_ = false;
  std::shared_ptr<const ShardMap> map_;
  SessionRef session_;
  std::map<uint32_t, std::shared_ptr<Connection>> connections_;
  size_t fibers_ = 0;  // Of messages.
  uint64_t seeds_ = 0, resent_ = 0;

  std::unique_ptr<Timer> timer_;
  std::unique_ptr<worker::Rerouter> rerouter_;
  Thread run_, heartbeats_, reads_;
};

}  // namespace lodestone::simulation
