// PushPull by a ps that is not the one to answer it.
#include "server/rpc/push_pull.h"

#include <memory>
#include <optional>

#include "gtest/gtest.h"
#include "tests/server/store/store_fixture.h"

namespace lodestone::server {
namespace {

constexpr uint64_t kPushPullElements = 64;

class PushPullTest : public StoreTest {
 protected:
  // The outcome of a PushPull of a dense table that the ps does not know, or has just made.
  absl::Status PushPull(Incarnation worker = kWorker) {
    const TableId table = TableIdOf("dense");
    const BlockLayout layout = {kPushPullElements, kPushPullElements};
    RequestBuilder<v1::PushRequest> push = NewPush(1, worker);
    push.AddDense(table, layout, 1.0f);
    RequestBuilder<v1::PullRequest> pull(kShards);
    pull.AddDense(table, layout, std::nullopt);
    v1::PushPullRequest request;
    *request.mutable_push() = push.header;
    *request.mutable_pull() = pull.header;
    const auto call = CheckPushPull(store_.get(), request, push.payload());
    if (!call.ok()) return call.status();
    std::optional<absl::Status> status;
    std::latch done(1);
    RunPushPull(store_.get(), *call, [&](absl::StatusOr<PushPullValues> values) {
      status = values.status();
      done.count_down();
    });
    done.wait();
    return *status;
  }
};

// Regression: the ps looked its tables up first and answered NOT_FOUND, an error that clients do not retry.
TEST_F(PushPullTest, IsTurnedBackByAPsThatIsNotBackYet) {
  Store::Options options;
  options.shards = kShards;
  options.time = &time_;
  store_ = std::make_unique<Store>(options);
  EXPECT_EQ(PushPull().code(), absl::StatusCode::kUnavailable);
  store_->OwnShards({});
  EXPECT_EQ(PushPull().code(), absl::StatusCode::kAborted) << "it owns no shards: another ps does";
}

TEST_F(PushPullTest, NeedsASessionBeforeItsTablesAreLookedAt) {
  Make();
  EXPECT_EQ(PushPull().code(), absl::StatusCode::kFailedPrecondition);
  v1::TableSpec spec = AddingDense("dense", kPushPullElements, kPushPullElements);
  ASSERT_TRUE(Ensure({AddingDense("another", 8, 8)}).ok());
  EXPECT_EQ(PushPull().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(Ensure({spec}).ok());
  EXPECT_TRUE(PushPull().ok());
}

}  // namespace
}  // namespace lodestone::server
