#include "tests/chaos/tcp_proxy.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string>

#include "common/base/check.h"
#include "common/base/host_port.h"
#include "gtest/gtest.h"

namespace lodestone::chaos {
namespace {

using Direction = TcpProxy::Direction;

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

// A socket that ends with the object.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() { Close(); }

  int fd() const { return fd_; }
  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }
  void Send(const std::string& text) const {
    ASSERT_EQ(send(fd_, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }
  // Waits for as many bytes; fewer if the connection ends.
  std::string Receive(size_t size) const {
    std::string text(size, '\0');
    size_t got = 0;
    while (got < size) {
      const ssize_t more = recv(fd_, text.data() + got, size - got, 0);
      if (more <= 0) break;
      got += more;
    }
    return text.substr(0, got);
  }
  // How the connection ends: "closed" or "reset".
  std::string End() const {
    char byte = 0;
    for (;;) {
      const ssize_t got = recv(fd_, &byte, 1, 0);
      if (got == 0) return "closed";
      if (got < 0 && errno != EINTR) return errno == ECONNRESET ? "reset" : "failed";
    }
  }

 private:
  int fd_ = -1;
};

class Listener {
 public:
  Listener() : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = Loopback(0);
    socklen_t size = sizeof(address);
    LODESTONE_CHECK(bind(socket_.fd(), reinterpret_cast<sockaddr*>(&address), size) == 0);
    LODESTONE_CHECK(listen(socket_.fd(), 16) == 0);
    LODESTONE_CHECK(getsockname(socket_.fd(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
  }
  int port() const { return port_; }
  Socket Accept() const { return Socket(accept(socket_.fd(), nullptr, nullptr)); }

 private:
  Socket socket_;
  int port_ = 0;
};

// A server, the proxy before it, and a connection through both.
class TcpProxyTest : public testing::Test {
 protected:
  void SetUp() override {
    // The first client is known as 7.
    auto proxy =
        TcpProxy::Start([this](int, int) { return connections_++ == 0 ? std::optional<int>(7) : std::nullopt; });
    ASSERT_TRUE(proxy.ok()) << proxy.status();
    proxy_ = *std::move(proxy);
    proxy_->SetTarget(listener_.port());
    client_ = Connect();
    server_ = listener_.Accept();
  }

  // fd -1 if it is refused.
  Socket Connect() const {
    Socket client(socket(AF_INET, SOCK_STREAM, 0));
    const sockaddr_in address = Loopback(ParseHostPort(proxy_->address())->port);
    if (connect(client.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) client.Close();
    return client;
  }

  // Waits until the proxy has read this much from the server without passing it on.
  void AwaitHeld(uint64_t bytes) const {
    while (proxy_->traffic().replies_held < bytes) std::this_thread::yield();
  }

  Listener listener_;
  int connections_ = 0;  // The proxy's thread's.
  std::unique_ptr<TcpProxy> proxy_;
  Socket client_;
  Socket server_;
};

TEST_F(TcpProxyTest, PassesBytesBothWaysAndThenTheEnd) {
  const std::string large(3'000'000, 'x');
  std::thread sender([&] { client_.Send(large); });
  EXPECT_EQ(server_.Receive(large.size()), large);
  sender.join();
  server_.Send("answer");
  EXPECT_EQ(client_.Receive(6), "answer");
  server_.Send("last words");
  server_.Close();
  EXPECT_EQ(client_.Receive(10), "last words");
  EXPECT_EQ(client_.End(), "closed");
  EXPECT_EQ(proxy_->traffic().request_bytes, large.size());
  EXPECT_EQ(proxy_->traffic().connections, 1);
}

TEST_F(TcpProxyTest, PassesOnWhatAServerSaidBeforeItDiedThoughAClientIsStillTalking) {
  client_.Send("never read");
  server_.Send("answer");
  server_.Close();  // With bytes unread: resets.
  EXPECT_EQ(client_.Receive(6).substr(0, 6), "answer");
  EXPECT_NE(client_.End(), "failed");
}

TEST_F(TcpProxyTest, RefusesConnectionsWithoutATargetAndKeepsItsAddress) {
  proxy_->SetTarget(std::nullopt);
  EXPECT_EQ(Connect().fd(), -1);
  client_.Send("still here");
  EXPECT_EQ(server_.Receive(10), "still here");
  const Listener other;
  proxy_->SetTarget(other.port());
  const Socket client = Connect();
  const Socket server = other.Accept();
  client.Send("hello");
  EXPECT_EQ(server.Receive(5), "hello");
}

TEST_F(TcpProxyTest, HoldsOneDirectionUntilItIsToldToPassItOn) {
  proxy_->SetLink({.holds_replies = true});
  client_.Send("request");
  EXPECT_EQ(server_.Receive(7), "request");
  server_.Send("answer");
  AwaitHeld(6);
  char byte = 0;
  EXPECT_EQ(recv(client_.fd(), &byte, 1, MSG_DONTWAIT), -1);
  proxy_->SetLink({});
  EXPECT_EQ(client_.Receive(6), "answer");
}

TEST_F(TcpProxyTest, LosesTheReplyToARequestThatHasPassed) {
  proxy_->SetLink({.holds_replies = true});
  client_.Send("request");
  EXPECT_EQ(server_.Receive(7), "request");
  server_.Send("answer");
  AwaitHeld(6);
  proxy_->Cut();
  EXPECT_EQ(client_.End(), "reset");
  EXPECT_EQ(server_.End(), "reset");
  EXPECT_EQ(proxy_->traffic().reply_bytes, 0);
  EXPECT_EQ(proxy_->traffic().cut, 1);
}

TEST_F(TcpProxyTest, CutsAConnectionAfterTheByteItIsTold) {
  proxy_->CutAfter(Direction::kRequests, 5);
  client_.Send("request");
  EXPECT_EQ(server_.Receive(7), "reque");
  EXPECT_EQ(client_.End(), "reset");
  const Socket client = Connect();  // The order was for one.
  const Socket server = listener_.Accept();
  client.Send("request");
  EXPECT_EQ(server.Receive(7), "request");
}

TEST_F(TcpProxyTest, HoldsAndCutsTheConnectionsOfOneClientAlone) {
  const Socket other = Connect();
  const Socket other_server = listener_.Accept();
  proxy_->SetLinkOf(7, {.holds_replies = true});
  server_.Send("answer");
  AwaitHeld(6);
  other_server.Send("other answer");
  EXPECT_EQ(other.Receive(12), "other answer");
  client_.Send("request");
  EXPECT_EQ(server_.Receive(7), "request");
  proxy_->SetLinkOf(8, {.holds_requests = true});
  proxy_->SetLinkOf(7, {});
  EXPECT_EQ(client_.Receive(6), "answer");
  proxy_->CutOf(7);
  EXPECT_EQ(client_.End(), "reset");
  EXPECT_EQ(server_.End(), "reset");
  other.Send("still here");
  EXPECT_EQ(other_server.Receive(10), "still here");
}

TEST_F(TcpProxyTest, DelaysTheConnectionsOfOneClient) {
  proxy_->SetLinkOf(7, {.delay_ms = 30});
  const auto started = std::chrono::steady_clock::now();
  client_.Send("request");
  EXPECT_EQ(server_.Receive(7), "request");
  EXPECT_GE(std::chrono::steady_clock::now() - started, std::chrono::milliseconds(29));
}

TEST_F(TcpProxyTest, DelaysAndThrottles) {
  const auto started = std::chrono::steady_clock::now();
  proxy_->SetLink({.delay_ms = 30, .bytes_per_second = 1'000'000});
  client_.Send(std::string(200'000, 'x'));
  EXPECT_EQ(server_.Receive(200'000).size(), 200'000);
  // 0.03 s, and 0.2 s less the 0.02 s that may pass at once. It may take any longer.
  EXPECT_GE(std::chrono::steady_clock::now() - started, std::chrono::milliseconds(200));
}

}  // namespace
}  // namespace lodestone::chaos
