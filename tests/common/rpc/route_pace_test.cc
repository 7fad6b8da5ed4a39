#include "common/rpc/route_pace.h"

#include <vector>

#include "gtest/gtest.h"

namespace lodestone {
namespace {

// The pause behind a request at `now_ms`.
int64_t Asked(RoutePace* pace, int64_t now_ms, bool newer) {
  pace->Begin(now_ms);
  pace->End(now_ms, newer);
  return pace->next_ms() - now_ms;
}

TEST(RoutePace, TheFirstRequestIsMadeAtOnce) { EXPECT_LE(RoutePace(200).next_ms(), 0); }

TEST(RoutePace, IsSlowerAndSlowerWhileThereIsNoNewerMap) {
  RoutePace pace(200);
  std::vector<int64_t> pauses;
  for (int64_t now_ms = 1000; pauses.size() < 8; now_ms = pace.next_ms()) {
    pauses.push_back(Asked(&pace, now_ms, /*newer=*/false));
  }
  EXPECT_EQ(pauses, (std::vector<int64_t>{10, 20, 40, 80, 160, 200, 200, 200}));
}

TEST(RoutePace, IsQuickAgainOnceThereIsANewerMap) {
  RoutePace pace(200);
  for (int i = 0; i < 8; ++i) Asked(&pace, 1000 + 200 * i, /*newer=*/false);
  EXPECT_EQ(Asked(&pace, 2600, /*newer=*/true), RoutePace::kFirstPauseMs);
}

TEST(RoutePace, IsQuickAgainAfterAWhileWithoutRequests) {
  RoutePace pace(200);
  for (int i = 0; i < 8; ++i) Asked(&pace, 1000 + 200 * i, /*newer=*/false);
  EXPECT_EQ(Asked(&pace, 3000, /*newer=*/false), 2 * RoutePace::kFirstPauseMs);
}

TEST(RoutePace, PausesAlsoAfterAnswersThatTakeLong) {
  RoutePace pace(200);
  int64_t now_ms = 1000;
  for (int i = 0; i < 8; ++i) {
    pace.Begin(now_ms);
    now_ms += 500;
    pace.End(now_ms, /*newer=*/false);
    now_ms = pace.next_ms();
  }
  EXPECT_EQ(Asked(&pace, now_ms, /*newer=*/false), 200);
}

TEST(RoutePace, KeepsToAShorterMaximum) {
  RoutePace pace(1);
  EXPECT_EQ(Asked(&pace, 1000, /*newer=*/true), 1);
  EXPECT_EQ(Asked(&pace, 1001, /*newer=*/false), 1);
}

}  // namespace
}  // namespace lodestone
