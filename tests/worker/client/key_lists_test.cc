// Lists of keys that repeat: how often the client sends them, and that what it pushes counts once whatever the servers
// remember.
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/worker/client/client_fixture.h"

namespace lodestone::worker {
namespace {

constexpr uint32_t kListedDim = 2;
constexpr uint32_t kListServers = 2;

class KeyListsTest : public ClientFixture {
 protected:
  KeyListsTest() : ClientFixture(kListServers, /*shards=*/8, kElements, kListedDim) {
    for (Key key = 0; key < 400; ++key) keys_.push_back(key * 7);
    gradients_.assign(keys_.size() * kListedDim, 1);
    ones_.assign(kElements, 1);
  }

  // Pushes ones to the dense table and to the rows of `keys`, and waits.
  absl::Status Push(std::span<const Key> keys) {
    std::promise<absl::Status> result;
    const DenseGradient dense{&tables_[0], ones_.data(), true};
    const RowGradients rows{&tables_[1], keys, gradients_.data()};
    const absl::Status status = client_->Push(++clock_, {&dense, 1}, {&rows, 1}, {},
                                              [&](Client::PushResult pushed) { result.set_value(pushed.status); });
    return status.ok() ? result.get_future().get() : status;
  }
  absl::Status Push() { return Push(keys_); }

  // Expects `value` in every row of `keys_`.
  void ExpectRows(float value) {
    std::vector<float> values(keys_.size() * kListedDim, -1);
    const absl::Status status = client_->PullNow({}, {{&tables_[1], keys_, values.data()}}).status();
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(values, std::vector<float>(values.size(), value));
  }

  static constexpr uint64_t kElements = 20'000;

  std::vector<Key> keys_;
  std::vector<float> gradients_;
  std::vector<float> ones_;
  Clock clock_ = 0;
};

TEST_F(KeyListsTest, AListGoesOnceToEachServerAndIsReferredToFromThenOn) {
  Connect();
  FakeLists& lists = cluster_.lists();
  ExpectRows(0);
  EXPECT_EQ(lists.in_parts, kListServers);  // The client learns that the servers know of lists.
  ASSERT_TRUE(Push().ok());
  EXPECT_EQ(lists.first, kListServers);
  for (int i = 2; i <= 10; ++i) {
    ASSERT_TRUE(Push().ok());
    ExpectRows(static_cast<float>(i));  // A pull of the same keys has the same list.
  }
  EXPECT_EQ(lists.in_parts, kListServers);
  EXPECT_EQ(lists.first, kListServers);
  EXPECT_EQ(lists.remembered, 18 * kListServers);
  EXPECT_EQ(lists.forgotten, 0);
  for (uint64_t element = 0; element < kElements; element += 999) {
    EXPECT_EQ(cluster_.ValueOf(tables_[0].id, element), 10);
  }
}

TEST_F(KeyListsTest, AListThatAServerHasForgottenIsSentAgainAndThePushCountsOnce) {
  Connect();
  FakeLists& lists = cluster_.lists();
  for (int i = 1; i <= 3; ++i) ASSERT_TRUE(Push().ok());
  const size_t pushes = cluster_.pushes().size();
  ++lists.forgettings;
  ASSERT_TRUE(Push().ok());
  EXPECT_EQ(lists.forgotten, kListServers);
  EXPECT_EQ(lists.first, 2 * kListServers);
  EXPECT_EQ(cluster_.pushes().size(), pushes + kListServers) << "a push without its keys is none";
  ASSERT_TRUE(Push().ok());
  EXPECT_EQ(lists.forgotten, kListServers);
  ExpectRows(5);
  EXPECT_TRUE(client_->Flush().ok());
  EXPECT_TRUE(client_->Health().ok());
}

TEST_F(KeyListsTest, APushWhoseAnswerIsLostIsSentAgainWithItsListAndCountsOnce) {
  Connect();
  for (int i = 1; i <= 3; ++i) ASSERT_TRUE(Push().ok());
  cluster_.SetFaults([](uint32_t, const std::string& method, uint64_t call) {
    return method == "Push" && call % 2 == 0 ? Fault::kDropReply : Fault::kNone;
  });
  for (int i = 4; i <= 8; ++i) ASSERT_TRUE(Push().ok());
  ExpectRows(8);
}

TEST_F(KeyListsTest, AnotherStreamStartsFromNothing) {
  Connect();
  FakeLists& lists = cluster_.lists();
  for (int i = 1; i <= 3; ++i) ASSERT_TRUE(Push().ok());
  EXPECT_EQ(lists.in_parts, kListServers);
  cluster_.Restart(1, [] {});
  for (int i = 4; i <= 6; ++i) ASSERT_TRUE(Push().ok());
  EXPECT_EQ(lists.in_parts, kListServers + 1);
  EXPECT_EQ(lists.first, kListServers + 1);
  EXPECT_EQ(lists.forgotten, 0);
  ExpectRows(6);
}

TEST_F(KeyListsTest, ShardsThatMoveTakeTheirKeysWithThem) {
  Connect();
  for (int i = 1; i <= 3; ++i) ASSERT_TRUE(Push().ok());
  cluster_.MoveShards({{0, 1}, {2, 1}, {5, 0}});
  for (int i = 4; i <= 6; ++i) ASSERT_TRUE(Push().ok());
  ExpectRows(6);
  EXPECT_TRUE(client_->Health().ok());
}

TEST_F(KeyListsTest, AServerThatKnowsOfNoListsGetsAllKeys) {
  cluster_.lists().known = false;
  Connect();
  for (int i = 1; i <= 3; ++i) {
    ASSERT_TRUE(Push().ok());
    ExpectRows(static_cast<float>(i));
  }
  EXPECT_EQ(cluster_.lists().first + cluster_.lists().remembered, 0);
}

TEST_F(KeyListsTest, RowsOfSeveralShardsGoInOnePartOnceThePsHasSaidThatItTakesThem) {
  Connect();
  ASSERT_TRUE(Push().ok());  // The answer to EnsureTables has said it.
  EXPECT_EQ(cluster_.lists().parts_of_several, kListServers);
  ExpectRows(1);
  EXPECT_EQ(cluster_.lists().parts_of_several, 2 * kListServers);
}

TEST_F(KeyListsTest, FewKeysAreNoList) {
  Connect();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Push(std::span(keys_).first(20)).ok());
  EXPECT_EQ(cluster_.lists().in_parts + cluster_.lists().first, 0);
}

}  // namespace
}  // namespace lodestone::worker
