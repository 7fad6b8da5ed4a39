#include "common/wire/key_list.h"

#include "common/base/hash.h"
#include "common/base/nonce.h"
#include "common/wire/message.h"

namespace lodestone {
namespace {

// Chains of hashes that do not wait for each other.
constexpr uint32_t kLanes = 4;
constexpr uint64_t kOdd = 0x9fb21c651e98df25ull;

struct HashSecret {
  uint64_t high = DrawNonce();
  uint64_t low = DrawNonce();
};

}  // namespace

KeyListName NameKeys(const uint8_t* keys, uint32_t count) {
  static const HashSecret secret;
  uint64_t high[kLanes];
  uint64_t low[kLanes];
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    high[lane] = Mix64(secret.high + lane);
    low[lane] = Mix64(secret.low + lane);
  }
  uint32_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const Key key = LoadAt<Key>(keys, i + lane);
      high[lane] = Mix64(high[lane] ^ key);
      low[lane] = Mix64(low[lane] + key * kOdd);
    }
  }
  for (; i < count; ++i) {
    const Key key = LoadAt<Key>(keys, i);
    high[0] = Mix64(high[0] ^ key);
    low[0] = Mix64(low[0] + key * kOdd);
  }
  KeyListName name{Mix64(secret.low ^ count), Mix64(secret.high ^ count), count};
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    name.high = Mix64(name.high ^ high[lane]);
    name.low = Mix64(name.low + low[lane] * kOdd);
  }
  return name;
}

}  // namespace lodestone
