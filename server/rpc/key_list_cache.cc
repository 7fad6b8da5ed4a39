#include "server/rpc/key_list_cache.h"

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
      numbers->keys = CopyOf(numbers->payload.Take(bytes));
      if (name.count > 0 && Add(name, *numbers->keys)) *outcome = v1::Answer::REMEMBERED;
      return absl::OkStatus();
    }
    case v1::KeyList::REMEMBERED:
      if (const Payload* const keys = lists_.Find(name); keys != nullptr) {
        numbers->keys = *keys;
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

bool KeyListCache::Add(const KeyListName& name, const Payload& keys) {
  const size_t bytes = lists_.BytesOf(name);
  if (bytes > bytes_max_) return false;
  const size_t before = lists_.bytes();
  const auto others = [&] { return bytes_of_all_->load(std::memory_order_relaxed) - before; };
  while (!lists_.empty() && others() + lists_.bytes() + bytes > bytes_of_all_max_) lists_.EraseOldest();
  const bool room = others() + lists_.bytes() + bytes <= bytes_of_all_max_;
  if (room) lists_.Add(name, keys);
  bytes_of_all_->fetch_add(lists_.bytes() - before, std::memory_order_relaxed);  // Wraps to a subtraction.
  return room;
}

}  // namespace lodestone::server
