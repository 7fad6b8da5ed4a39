// Stands between TCP clients and one server, for tests: passes bytes on, late or slowly or only in one direction or not
// at all, and resets connections after any byte. Clients keep its address while the server comes and goes at others.
// Connections of one client can be treated otherwise than those of the rest, if it is told whose they are.
//
// Thread-safe. Methods return when what they ask for is in force.
//
// Owns its connections and a thread; the destructor resets what is left.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"

namespace lodestone::chaos {

class TcpProxy {
 public:
  // Takes a port of the loopback interface for itself. It is none that the kernel gives to others, so that nobody gets
  // it while the proxy refuses connections.
  // `client_of` tells who has the other end, at `port`, of a connection that was made to the proxy's port `to`;
  // nullopt: nobody in particular. Called on the proxy's thread. Null: nobody is known.
  using ClientOf = std::function<std::optional<int>(int port, int to)>;
  static absl::StatusOr<std::unique_ptr<TcpProxy>> Start(ClientOf client_of = nullptr);
  ~TcpProxy();
  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;

  // Where clients reach it, host:port.
  const std::string& address() const { return address_; }

  // The port, on the loopback interface, that connections lead to from now on; nullopt: they are refused. Those that
  // there are stay until one of their ends goes.
  void SetTarget(std::optional<int> port) {
    Order([&](Orders* orders) { orders->target = port; });
  }

  enum class Direction { kRequests, kReplies };  // To the server, from it.

  // How bytes travel. What has been read from one end and is held back is kept, up to 1 MiB a connection and direction.
  struct Link {
    int64_t delay_ms = 0;           // Each byte, in both directions.
    uint64_t bytes_per_second = 0;  // Of all connections together, in each direction. 0: no limit.
    bool holds_requests = false;    // No byte passes in this direction.
    bool holds_replies = false;
  };
  void SetLink(const Link& link);
  // How those of one client travel besides: the longer delay counts, and what either of the two holds is held.
  // REQUIRES: no bytes_per_second. A good link is none.
  void SetLinkOf(int client, const Link& link);

  // Resets every connection, and with it what is on the way.
  void Cut() {
    Order([](Orders* orders) { orders->cut = true; });
  }
  // The connections of one client.
  void CutOf(int client) {
    Order([&](Orders* orders) { orders->cut_of.insert(client); });
  }
  // Resets a connection once it has passed the last of this many further bytes in this direction (of all connections
  // together), so that a message arrives in part. Replaces an order that was not carried out yet; 0 takes it back.
  void CutAfter(Direction direction, uint64_t bytes);

  struct Traffic {
    uint64_t connections = 0;    // Taken so far.
    uint64_t cut = 0;            // Reset by Cut and CutAfter.
    uint64_t request_bytes = 0;  // Passed on.
    uint64_t reply_bytes = 0;
    uint64_t replies_held = 0;  // Bytes of replies that were read from the server and not passed on yet.
  };
  Traffic traffic() const;

 private:
  struct Flow;
  struct Connection;
  // An order of CutAfter.
  struct Tripwire {
    Direction direction = Direction::kRequests;
    uint64_t bytes = 0;
  };
  // What is asked for; what is done once is taken back when it is.
  struct Orders {
    std::optional<int> target;
    Link link;
    std::map<int, Link> links_of;
    bool cut = false;
    std::set<int> cut_of;
    std::optional<Tripwire> tripwire;
    bool stop = false;
  };

  TcpProxy(int listener, int port, int wake, ClientOf client_of);

  void Run();
  // Waits for something to happen. False: the proxy ends.
  bool Wait();
  void ObeyOrders();
  void Accept();
  // Moves what can be moved; false if the connection is over.
  bool Serve(Connection* connection);
  bool Read(Flow* flow);
  bool Write(Flow* flow);
  // Bytes that may pass in this direction now.
  uint64_t Allowance(Direction direction) const;
  bool Holds(const Flow& flow) const;
  // Null: none of its client's.
  const Link* LinkOf(const Flow& flow) const;
  void Close(Connection* connection, bool reset);
  // Changes the orders, wakes the thread and waits until it has seen them.
  void Order(const std::function<void(Orders*)>& change) ABSL_LOCKS_EXCLUDED(mu_);
  void Publish();

  // Constant.
  const int listener_;
  const int wake_;  // An eventfd.
  const int port_;
  const std::string address_;
  const ClientOf client_of_;

  mutable Mutex mu_;
  CondVar obeyed_changed_;
  uint64_t ordered_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t obeyed_ ABSL_GUARDED_BY(mu_) = 0;
  Orders orders_ ABSL_GUARDED_BY(mu_);
  Traffic traffic_ ABSL_GUARDED_BY(mu_);

  // The thread's own: the orders as it obeys them, and what it has.
  std::optional<int> current_target_;
  Link current_link_;
  std::map<int, Link> current_links_of_;
  Tripwire current_tripwire_;
  Traffic current_traffic_;
  bool listening_ = false;
  int64_t tokens_at_us_ = 0;
  double tokens_[2] = {0, 0};  // Bytes that bytes_per_second lets pass now, by direction.
  std::list<std::unique_ptr<Connection>> connections_;

  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace lodestone::chaos
