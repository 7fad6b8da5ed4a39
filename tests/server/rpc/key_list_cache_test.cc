#include "server/rpc/key_list_cache.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

constexpr uint32_t kCount = 100;

// A call's payload: `count` keys from `first` on, then some values.
std::vector<Key> KeysFrom(Key first, uint32_t count = kCount) {
  std::vector<Key> keys(count);
  for (uint32_t i = 0; i < count; ++i) keys[i] = first + i;
  return keys;
}

class KeyListCacheTest : public ::testing::Test {
 protected:
  static v1::KeyList ListOf(Key name, v1::KeyList::Place place, uint32_t count = kCount) {
    v1::KeyList list;
    SetName({name, 7, count}, &list);
    list.set_place(place);
    return list;
  }
  static Payload PayloadOf(const std::vector<Key>& keys) {
    std::string bytes(reinterpret_cast<const char*>(keys.data()), keys.size() * sizeof(Key));
    bytes += "values";
    // In slices that end within a key.
    const size_t cut = bytes.size() / 2 + 1;
    return Payload({grpc::Slice(bytes.substr(0, cut)), grpc::Slice(bytes.substr(cut))});
  }
  static std::vector<Key> KeysOf(const Payload& payload) {
    std::vector<Key> keys(payload.size() / sizeof(Key));
    payload.bytes().CopyTo(keys.data());
    return keys;
  }

  // What becomes of a list that comes with its keys.
  v1::Answer::Keys Send(KeyListCache* lists, Key name) {
    RequestPayload numbers = PayloadOf(KeysFrom(name));
    v1::Answer::Keys outcome = v1::Answer::NO_LIST;
    const absl::Status status = lists->Take(ListOf(name, v1::KeyList::FIRST), &numbers, &outcome);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(KeysOf(*numbers.keys), KeysFrom(name));
    EXPECT_EQ(numbers.payload.size(), 6);
    return outcome;
  }
  // Whether a list is remembered that is referred to.
  bool Refer(KeyListCache* lists, Key name) {
    RequestPayload numbers = PayloadOf({});
    v1::Answer::Keys outcome = v1::Answer::NO_LIST;
    const absl::Status status = lists->Take(ListOf(name, v1::KeyList::REMEMBERED), &numbers, &outcome);
    EXPECT_EQ(outcome, status.ok() ? v1::Answer::REMEMBERED : v1::Answer::FORGOTTEN);
    EXPECT_EQ(numbers.payload.size(), 6);
    if (!status.ok()) {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      return false;
    }
    EXPECT_EQ(KeysOf(*numbers.keys), KeysFrom(name));
    return true;
  }

  static size_t ListBytes() { return KeyListMemory<Payload>::BytesOf({1, 7, kCount}); }

  const std::shared_ptr<KeyListPool> pool_ = std::make_shared<KeyListPool>();
};

TEST_F(KeyListCacheTest, RemembersAListThatCameWithItsKeys) {
  KeyListCache lists(pool_);
  EXPECT_FALSE(Refer(&lists, 5));
  EXPECT_EQ(Send(&lists, 5), v1::Answer::REMEMBERED);
  EXPECT_TRUE(Refer(&lists, 5));
  EXPECT_TRUE(Refer(&lists, 5));
  EXPECT_FALSE(Refer(&lists, 6));
}

TEST_F(KeyListCacheTest, TakesNothingFromACallWhoseKeysAreInItsParts) {
  KeyListCache lists(pool_);
  RequestPayload numbers = PayloadOf(KeysFrom(5));
  v1::Answer::Keys outcome = v1::Answer::NO_LIST;
  EXPECT_TRUE(lists.Take(ListOf(5, v1::KeyList::IN_PARTS), &numbers, &outcome).ok());
  EXPECT_EQ(outcome, v1::Answer::NOT_REMEMBERED);
  EXPECT_FALSE(numbers.keys.has_value());
  EXPECT_EQ(numbers.payload.size(), kCount * sizeof(Key) + 6);
  EXPECT_FALSE(Refer(&lists, 5));
}

TEST_F(KeyListCacheTest, RefusesWhatIsLongerThanThePayloadAndPlacesThatItDoesNotKnow) {
  KeyListCache lists(pool_);
  for (const uint32_t count : {kCount + 1, UINT32_MAX}) {
    RequestPayload numbers = PayloadOf(KeysFrom(5));
    v1::Answer::Keys outcome = v1::Answer::NO_LIST;
    EXPECT_EQ(lists.Take(ListOf(5, v1::KeyList::FIRST, count), &numbers, &outcome).code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(outcome, v1::Answer::NOT_REMEMBERED);
  }
  RequestPayload numbers = PayloadOf(KeysFrom(5));
  v1::Answer::Keys outcome = v1::Answer::NO_LIST;
  EXPECT_EQ(lists.Take(ListOf(5, static_cast<v1::KeyList::Place>(9)), &numbers, &outcome).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pool_->bytes(), 0);
}

TEST_F(KeyListCacheTest, AStreamKeepsToItsOwnLimit) {
  KeyListCache lists(pool_, 3 * ListBytes());
  for (const Key name : {1, 2, 3}) EXPECT_EQ(Send(&lists, name), v1::Answer::REMEMBERED);
  EXPECT_TRUE(Refer(&lists, 1));
  EXPECT_EQ(Send(&lists, 4), v1::Answer::REMEMBERED);
  EXPECT_FALSE(Refer(&lists, 2));
  for (const Key name : {1, 3, 4}) EXPECT_TRUE(Refer(&lists, name));
  EXPECT_EQ(pool_->bytes(), 3 * ListBytes());
  KeyListCache small(pool_, ListBytes() - 1);
  EXPECT_EQ(Send(&small, 1), v1::Answer::NOT_REMEMBERED);
  EXPECT_EQ(pool_->bytes(), 3 * ListBytes());
}

TEST_F(KeyListCacheTest, AllStreamsTogetherKeepToTheirLimitAndGiveBackWhatTheyTook) {
  const auto pool = std::make_shared<KeyListPool>(4 * ListBytes());
  KeyListCache one(pool);
  {
    KeyListCache other(pool);
    for (Key name = 1; name <= 10; ++name) {
      EXPECT_EQ(Send(&one, name), v1::Answer::REMEMBERED);
      EXPECT_EQ(Send(&other, name), v1::Answer::REMEMBERED);
      EXPECT_LE(pool->bytes(), 4 * ListBytes());
    }
    for (const Key name : {9, 10}) {
      EXPECT_TRUE(Refer(&one, name));
      EXPECT_TRUE(Refer(&other, name));
    }
  }
  EXPECT_EQ(pool->bytes(), 2 * ListBytes());
}

// Regression: the first streams held all of it, for ever.
TEST_F(KeyListCacheTest, ASilentStreamMakesRoomForOneThatHoldsLess) {
  const auto pool = std::make_shared<KeyListPool>(4 * ListBytes());
  KeyListCache silent(pool);
  for (const Key name : {1, 2, 3, 4}) EXPECT_EQ(Send(&silent, name), v1::Answer::REMEMBERED);
  KeyListCache late(pool);
  EXPECT_EQ(Send(&late, 1), v1::Answer::REMEMBERED);
  EXPECT_EQ(Send(&late, 2), v1::Answer::REMEMBERED);
  for (const Key name : {1, 2}) EXPECT_TRUE(Refer(&late, name));
  for (const Key name : {3, 4}) EXPECT_TRUE(Refer(&silent, name)) << "what it used last";
  EXPECT_LE(pool->bytes(), 4 * ListBytes());
}

TEST_F(KeyListCacheTest, AListThatIsForgottenStaysWithTheCallsThatUseIt) {
  KeyListCache lists(pool_, ListBytes());
  EXPECT_EQ(Send(&lists, 1), v1::Answer::REMEMBERED);
  RequestPayload numbers;
  v1::Answer::Keys outcome = v1::Answer::NO_LIST;
  ASSERT_TRUE(lists.Take(ListOf(1, v1::KeyList::REMEMBERED), &numbers, &outcome).ok());
  EXPECT_EQ(Send(&lists, 2), v1::Answer::REMEMBERED);
  EXPECT_FALSE(Refer(&lists, 1));
  EXPECT_EQ(KeysOf(*numbers.keys), KeysFrom(1));
}

}  // namespace
}  // namespace lodestone::server
