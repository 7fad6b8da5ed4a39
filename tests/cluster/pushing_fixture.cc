#include "tests/cluster/pushing_fixture.h"

#include <algorithm>
#include <utility>

#include "common/base/time_source.h"

namespace lodestone {

void PushingFixture::StartPushing() {
  ASSERT_NO_FATAL_FAILURE(Connect({DenseOnes(), RowOnes()}));
  for (Key key = 0; key < kKeys; ++key) keys_.push_back(key);
  pusher_ = std::thread([this] { PushOnes(); });
}

void PushingFixture::EndPushing() {
  if (!pusher_.joinable()) return;
  done_ = true;
  Await([this] { return pusher_ended_.load(); });
  pusher_.join();
  client_.reset();
}

void PushingFixture::NoteAcknowledged() {
  const int64_t now_ms = SteadyTime().NowMs();
  const int64_t before_ms = acknowledged_ms_.exchange(now_ms);
  if (before_ms > 0) pause_ms_max_ = std::max(pause_ms_max_.load(), now_ms - before_ms);
  ++acknowledged_;
}

void PushingFixture::PushOnes() {
  const std::vector<float> ones(kElements, 1.0f);
  for (Clock clock = 1; !done_; ++clock) {
    const worker::DenseGradient dense{&tables_[0], ones.data(), false};
    const worker::RowGradients rows{&tables_[1], keys_, ones.data()};
    const absl::Status sent =
        client_->Push(clock, {&dense, 1}, {&rows, 1}, {}, [this](const worker::Client::PushResult& result) {
          EXPECT_TRUE(result.status.ok()) << result.status;
          NoteAcknowledged();
        });
    EXPECT_TRUE(sent.ok()) << sent;
    if (!sent.ok()) break;
    ++pushed_;
  }
  const absl::Status flushed = client_->Flush();
  EXPECT_TRUE(flushed.ok()) << flushed;
  pusher_ended_ = true;
}

bool PushingFixture::AwaitPushes(uint64_t count) {
  const uint64_t until = acknowledged_ + count;
  return Await([&] { return acknowledged_ >= until; });
}

void PushingFixture::ExpectExact() {
  done_ = true;
  ASSERT_TRUE(Await([this] { return pusher_ended_.load(); }));
  EXPECT_EQ(acknowledged_, pushed_);
  ExpectSums();
}

void PushingFixture::ExpectSums() {
  std::vector<float> dense(kElements), rows(kKeys);
  std::atomic<bool> pulled{false};
  absl::Status status;
  client_->Pull({{&tables_[0], dense.data()}}, {{&tables_[1], keys_, rows.data()}},
                [&](absl::Status outcome, const worker::ShardVersions&) {
                  status = std::move(outcome);
                  pulled = true;
                });
  ASSERT_TRUE(Await([&] { return pulled.load(); }));
  ASSERT_TRUE(status.ok()) << status;
  const auto sum = static_cast<float>(pushed_);  // Far below 2^24: exact.
  EXPECT_EQ(dense, std::vector<float>(kElements, sum));
  EXPECT_EQ(rows, std::vector<float>(kKeys, sum));
}

}  // namespace lodestone
