#include "server/rpc/key_list_cache.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/types.h"
#include "grpcpp/support/slice.h"
#include "server/rpc/copied_slice.h"

namespace lodestone::server {
namespace {

// A copy in one run of memory of its own.
Payload CopyOf(const Payload& payload) {
  std::vector<grpc::Slice> slices;
  slices.push_back(CopiedSlice(payload.bytes()));
  return Payload(std::move(slices));
}

}  // namespace

absl::Status KeyListCache::Take(const v1::KeyList& list, RequestPayload* numbers, v1::Answer::Keys* outcome) {
  *outcome = v1::Answer::NOT_REMEMBERED;
  const KeyListName name = NameOf(list);
  switch (list.place()) {
    case v1::KeyList::IN_PARTS:
      return absl::OkStatus();
    case v1::KeyList::FIRST: {
      const uint64_t bytes = uint64_t{name.count} * sizeof(Key);
      if (bytes > numbers->payload.size()) {
        return absl::InvalidArgumentError(absl::StrCat("a list of ", name.count, " keys takes ", bytes,
                                                       " bytes, but the call's payload has ", numbers->payload.size()));
      }
      numbers->keys = numbers->payload.Take(bytes);
      if (name.count == 0) return absl::OkStatus();
      if (std::optional<Payload> cached = Add(name, *numbers->keys); cached.has_value()) {
        numbers->keys = *std::move(cached);
        *outcome = v1::Answer::REMEMBERED;
      }
      return absl::OkStatus();
    }
    case v1::KeyList::REMEMBERED:
      if (std::optional<Payload> keys = Find(name); keys.has_value()) {
        numbers->keys = *std::move(keys);
        *outcome = v1::Answer::REMEMBERED;
        return absl::OkStatus();
      }
      *outcome = v1::Answer::FORGOTTEN;
      return absl::FailedPreconditionError(absl::StrCat(
          "the list of ", name.count, " keys is not cached by this stream; send the call again with the keys"));
    default:
      break;
  }
  return absl::InvalidArgumentError(absl::StrCat("keys.place ", static_cast<int>(list.place()),
                                                 " is unknown to this ps; send the keys in the parts"));
}

std::optional<Payload> KeyListCache::Add(const KeyListName& name, const Payload& keys) {
  const size_t bytes = KeyListMemory<Payload>::BytesOf(name);
  const size_t share = std::min(pool_->Share(), bytes_max_);
  if (bytes > bytes_max_ || (bytes > share && !pool_->HasRoom(bytes))) return std::nullopt;
  if (!pool_->HasRoom(bytes)) {
    TrimTo(share - bytes);
    if (!pool_->HasRoom(bytes)) pool_->Trim();
    if (!pool_->HasRoom(bytes)) return std::nullopt;
  }
  Payload copy = CopyOf(keys);
  MutexLock lock(&mu_);
  const size_t before = lists_.bytes();
  lists_.Add(name, copy);
  pool_->bytes_.fetch_add(lists_.bytes() - before, std::memory_order_relaxed);  // Wraps to a subtraction.
  return copy;
}

std::optional<Payload> KeyListCache::Find(const KeyListName& name) {
  MutexLock lock(&mu_);
  const Payload* const keys = lists_.Find(name);
  return keys == nullptr ? std::nullopt : std::optional<Payload>(*keys);
}

void KeyListCache::TrimTo(size_t bytes) {
  MutexLock lock(&mu_);
  const size_t before = lists_.bytes();
  while (lists_.bytes() > bytes) lists_.EraseOldest();
  pool_->bytes_.fetch_sub(before - lists_.bytes(), std::memory_order_relaxed);
}

KeyListCache::~KeyListCache() {
  pool_->Leave(this);
  TrimTo(0);
}

void KeyListPool::Join(KeyListCache* cache) {
  MutexLock lock(&mu_);
  caches_.insert(cache);
  count_.store(caches_.size(), std::memory_order_relaxed);
}

void KeyListPool::Leave(KeyListCache* cache) {
  MutexLock lock(&mu_);
  caches_.erase(cache);
  count_.store(caches_.size(), std::memory_order_relaxed);
}

void KeyListPool::Trim() {
  const size_t share = Share();
  MutexLock lock(&mu_);
  for (KeyListCache* const cache : caches_) cache->TrimTo(share);
}

}  // namespace lodestone::server
