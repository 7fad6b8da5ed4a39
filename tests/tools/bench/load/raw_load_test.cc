#include "tools/bench/load/raw_load.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tools/bench/load/pairs.h"
#include "tools/bench/load/raw_socket.h"

namespace lodestone::bench {
namespace {

constexpr uint64_t kMemoryBytes = 4 << 20;

TEST(SocketReader, ReadsMessagesOfAllSizesWhateverPiecesTheyComeIn) {
  const absl::StatusOr<Listener> listener = Listen(Transport::kUnix);
  ASSERT_TRUE(listener.ok()) << listener.status();
  const absl::StatusOr<int> client = ConnectTo(*listener);
  ASSERT_TRUE(client.ok()) << client.status();
  const int server = AcceptFrom(*listener);
  ASSERT_GE(server, 0);
  const std::vector<size_t> sizes = {1, 16, 3, 70'000, 16, 65'536, 1'000'000, 2, 2};
  std::vector<uint8_t> sent(std::accumulate(sizes.begin(), sizes.end(), size_t{0}));
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<uint8_t>(i * 31 % 251);
  std::thread sender([&] {
    size_t at = 0;
    for (const size_t piece : {5, 20, 66'000, 100, 500'000}) {
      EXPECT_TRUE(SendMessage(*client, sent.data() + at, piece, sent.data() + at + piece, 0));
      at += piece;
    }
    EXPECT_TRUE(SendMessage(*client, sent.data() + at, 7, sent.data() + at + 7, sent.size() - at - 7));
    shutdown(*client, SHUT_WR);
  });
  SocketReader reader(server);
  size_t at = 0;
  for (const size_t size : sizes) {
    std::vector<uint8_t> got(size);
    ASSERT_TRUE(reader.Read(got.data(), size));
    EXPECT_EQ(std::memcmp(got.data(), sent.data() + at, size), 0) << size << " bytes at " << at;
    at += size;
  }
  uint8_t more;
  EXPECT_FALSE(reader.Read(&more, 1));
  sender.join();
  close(*client);
  close(server);
  close(listener->fd);
}

// An exchange's sizes; the last two are those of a second one.
using Sizes = std::vector<uint64_t>;

class RawExchangeTest : public testing::TestWithParam<Transport> {};

TEST_P(RawExchangeTest, ExchangesAnyMixtureOfSizesAndDepths) {
  const auto pair = RawPair::Start(GetParam(), 2, kMemoryBytes);
  ASSERT_TRUE(pair.ok()) << pair.status();
  for (const Sizes& sizes : {Sizes{64, 16, 0, 0},
                             {1 << 20, 16, 0, 0},
                             {16, 1 << 20, 0, 0},
                             {1 << 20, 1 << 20, 0, 0},
                             {65'536, 65'536, 0, 0},
                             {32'768, 300'000, 300'000, 16}}) {
    // So many as the last fill the sockets' buffers in both directions even if each of them is small.
    for (const uint32_t depth : {1u, 8u, 256u}) {
      Order order;
      order.depth = depth;
      order.request_bytes = sizes[0];
      order.reply_bytes = sizes[1];
      order.second_request_bytes = sizes[2];
      order.second_reply_bytes = sizes[3];
      const absl::StatusOr<Sample> sample = (*pair)->Measure(2, order, 30);
      ASSERT_TRUE(sample.ok()) << sample.status();
      EXPECT_EQ(sample->latencies_us.size(), sample->operations);
      for (const float latency : sample->latencies_us) EXPECT_GT(latency, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, RawExchangeTest, testing::Values(Transport::kTcp, Transport::kUnix));

TEST(RawPair, FansOutToAllSubscribers) {
  const auto pair = RawPair::StartFanout(3, 1 << 20);
  ASSERT_TRUE(pair.ok()) << pair.status();
  Order order;
  order.depth = 2;
  for (int run = 0; run < 2; ++run) {
    const absl::StatusOr<Sample> sample = (*pair)->Measure(3, order, 200);
    ASSERT_TRUE(sample.ok()) << sample.status();
    EXPECT_GT(sample->operations, 0);
    EXPECT_EQ(static_cast<uint64_t>(sample->operations) % (256 << 10), 0);  // Whole pieces are counted.
  }
}

TEST(MemcpyLoad, CopiesInItsOwnProcess) {
  std::vector<std::unique_ptr<Peer>> peers(1);
  auto peer = Peer::Start("memcpy", MemcpyLoad(kMemoryBytes));
  ASSERT_TRUE(peer.ok()) << peer.status();
  peers[0] = *std::move(peer);
  Order order;
  order.request_bytes = 4096;
  const absl::StatusOr<Sample> sample = MeasureWindow(peers, {order}, 0, 30);
  ASSERT_TRUE(sample.ok()) << sample.status();
  EXPECT_EQ(sample->latencies_us.size(), sample->operations);
}

}  // namespace
}  // namespace lodestone::bench
