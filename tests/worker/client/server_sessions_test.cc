#include "worker/client/server_sessions.h"

#include <latch>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/timer.h"
#include "common/rpc/channel.h"
#include "common/wire/ps_name.h"
#include "gtest/gtest.h"
#include "tests/worker/rpc/fake_cluster.h"
#include "worker/rpc/connection.h"
#include "worker/rpc/server_channel.h"

namespace lodestone::worker {
namespace {

constexpr size_t kMessageBytes = 64 << 20;

// P5 of the review of durability: the next push was taken for one to a ps that knows its worker.
TEST(ServerSessionsTest, AnAnswerThatComesAfterTheServerWasForgottenDoesNotOpenItsSession) {
  FakeCluster cluster(1, 1);
  cluster.SetFaults([](uint32_t, const std::string& method, uint64_t call) {
    return method == "EnsureTables" && call == 1 ? Fault::kHold : Fault::kNone;
  });
  ConnectionThread thread;
  Timer timer;
  std::vector<std::unique_ptr<Connection>> connections;
  connections.push_back(std::make_unique<Connection>(
      PsName(0, cluster.config().cluster().name()),
      MakeChannel(cluster.config().coordinator().address(), kMessageBytes), thread.queue(), &timer,
      /*call_timeout_ms=*/60'000, kMessageBytes));
  std::vector<std::unique_ptr<ServerChannel>> channels;
  channels.push_back(std::make_unique<ServerChannel>(
      "ps 0", std::move(connections),
      ServerChannel::Options{.policy = {60'000, 60'000}, .timer = &timer, .on_unreachable = nullptr}));
  ServerSessions sessions(/*incarnation=*/7, channels);
  const auto open = [&](const std::function<void()>& meanwhile) {
    std::latch done(1);
    sessions.Open(0, [&](const absl::Status& status) {
      EXPECT_TRUE(status.ok()) << status;
      done.count_down();
    });
    meanwhile();
    done.wait();
  };
  open([&] {
    cluster.AwaitCalls(0, "EnsureTables", 1);
    sessions.Forget(0);
    cluster.ReleaseHeld();
  });
  EXPECT_FALSE(sessions.IsOpen(0));
  open([] {});
  EXPECT_TRUE(sessions.IsOpen(0));
  channels[0]->Cancel();
}

}  // namespace
}  // namespace lodestone::worker
