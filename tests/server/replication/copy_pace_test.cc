#include "server/replication/copy_pace.h"

#include <memory>

#include "common/base/time_source.h"
#include "grpcpp/server_context.h"
#include "gtest/gtest.h"
#include "server/replication/follow_stream.h"

namespace lodestone::server {
namespace {

constexpr uint64_t kPieceBytes = 1 << 20;

TEST(CopyPace, WhileUpdatesComeItTakesItsTimeAndWithoutThemItDoesNot) {
  // Nothing is sent on it.
  const auto stream = std::make_shared<FollowStream>(nullptr, nullptr);
  CopyPace pace(10 * kPieceBytes);
  const SteadyTime time;
  int64_t start_ms = time.NowMs();
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(pace.Await(*stream, kPieceBytes));
  EXPECT_LT(time.NowMs() - start_ms, 50'000) << "it would be 100 s";
  start_ms = time.NowMs();
  for (int i = 0; i < 6; ++i) {
    pace.NoteUpdate();
    ASSERT_TRUE(pace.Await(*stream, kPieceBytes));
  }
  EXPECT_GE(time.NowMs() - start_ms, 200) << "5 pieces of 100 ms, but for the idle time that it goes by";
  start_ms = time.NowMs();
  for (int i = 0; i < 100; ++i) {
    pace.NoteUpdate();
    ASSERT_TRUE(pace.Await(*stream, kPieceBytes, /*hurry=*/1024));
  }
  EXPECT_LT(time.NowMs() - start_ms, 9'000) << "it would be 10 s";
}

}  // namespace
}  // namespace lodestone::server
