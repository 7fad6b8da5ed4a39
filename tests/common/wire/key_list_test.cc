#include "common/wire/key_list.h"

#include <cstring>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "common/base/random.h"
#include "gtest/gtest.h"

namespace lodestone {
namespace {

constexpr uint64_t kSeed = 9;

KeyListName NameOfKeys(const std::vector<Key>& keys) {
  return NameKeys(reinterpret_cast<const uint8_t*>(keys.data()), static_cast<uint32_t>(keys.size()));
}

TEST(NameKeys, NamesTheSameKeysAlikeWhereverTheyLie) {
  std::vector<Key> keys(37);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = RandomBits(kSeed, i);
  std::string bytes = "x";
  bytes.append(reinterpret_cast<const char*>(keys.data()), keys.size() * sizeof(Key));
  EXPECT_EQ(NameKeys(reinterpret_cast<const uint8_t*>(bytes.data()) + 1, 37), NameOfKeys(keys));
}

TEST(NameKeys, TellsListsApartThatDifferInOneBitInOrderOrInLength) {
  RecordProperty("seed", std::to_string(kSeed));
  std::set<std::tuple<uint64_t, uint64_t, uint32_t>> names;
  std::set<uint64_t> highs, lows;  // Either half alone would do for so few.
  size_t lists = 0;
  const auto add = [&](const std::vector<Key>& keys) {
    const KeyListName name = NameOfKeys(keys);
    EXPECT_EQ(name.count, keys.size());
    names.emplace(name.high, name.low, name.count);
    highs.insert(name.high);
    lows.insert(name.low);
    ++lists;
  };
  std::vector<Key> keys(13);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = RandomBits(kSeed, i);
  add(keys);
  for (size_t i = 0; i < keys.size(); ++i) {
    for (int bit = 0; bit < 64; ++bit) {
      keys[i] ^= Key{1} << bit;
      add(keys);
      keys[i] ^= Key{1} << bit;
    }
    for (size_t j = 0; j < i; ++j) {
      std::swap(keys[i], keys[j]);
      add(keys);
      std::swap(keys[i], keys[j]);
    }
  }
  for (size_t count = 0; count < 200; ++count) add(std::vector<Key>(count, 0));
  EXPECT_EQ(names.size(), lists);
  EXPECT_EQ(highs.size(), lists);
  EXPECT_EQ(lows.size(), lists);
}

TEST(KeyListMemory, ForgetsWhatWasUsedLeastRecently) {
  const KeyListName a{1, 0, 100}, b{2, 0, 100}, c{2, 1, 100};
  KeyListMemory<int> memory(2 * KeyListMemory<int>::BytesOf(a));
  EXPECT_TRUE(memory.Add(a, 1));
  EXPECT_TRUE(memory.Add(b, 2));
  ASSERT_NE(memory.Find(a), nullptr);
  EXPECT_TRUE(memory.Add(c, 3));
  ASSERT_NE(memory.Find(a), nullptr);
  EXPECT_EQ(*memory.Find(a), 1);
  EXPECT_EQ(memory.Find(b), nullptr);
  ASSERT_NE(memory.Find(c), nullptr);
  EXPECT_EQ(*memory.Find(c), 3);
  memory.EraseOldest();
  EXPECT_EQ(memory.Find(a), nullptr);
  memory.Erase(a);
  memory.Erase(c);
  EXPECT_TRUE(memory.empty());
  EXPECT_EQ(memory.bytes(), 0);
}

TEST(KeyListMemory, TakesNoListThatIsLongerThanAllOfIt) {
  const KeyListName a{1, 0, 10}, long_one{2, 0, 1000};
  KeyListMemory<int> memory(2 * KeyListMemory<int>::BytesOf(a));
  EXPECT_TRUE(memory.Add(a, 1));
  EXPECT_FALSE(memory.Add(long_one, 2));
  EXPECT_EQ(memory.Find(long_one), nullptr);
  EXPECT_NE(memory.Find(a), nullptr);
}

TEST(KeyListMemory, AListThatIsAddedAgainCountsOnce) {
  const KeyListName a{1, 2, 10};
  KeyListMemory<int> memory(1 << 20);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(memory.Add(a, i));
  EXPECT_EQ(memory.bytes(), KeyListMemory<int>::BytesOf(a));
  EXPECT_EQ(*memory.Find(a), 2);
  // Length and name are one: a list of another length is another one.
  EXPECT_EQ(memory.Find({1, 2, 11}), nullptr);
}

}  // namespace
}  // namespace lodestone
