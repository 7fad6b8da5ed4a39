#include "server/rpc/call_memory.h"

#include "absl/strings/str_cat.h"

namespace lodestone::server {

absl::Status CallMemory::TakeAnswer(uint64_t bytes, uint64_t held) {
  uint64_t before = bytes_.load();
  while (before <= held || before + bytes <= bytes_max()) {
    if (bytes_.compare_exchange_weak(before, before + bytes)) return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "the calls under way take ", before, " bytes of this ps's memory for calls, ", bytes_max(),
      ", which leaves no room for an answer of ", bytes,
      "; send the call again a little later, pull less at a time, or use Exchange, whose calls wait for their turn"));
}

void CallMemory::FillStatus(const std::string& who, v1::StatusResponse* status) const {
  status->mutable_server()->set_call_bytes(bytes() + large_answers_.bytes());
  status->mutable_server()->set_call_bytes_max(bytes_max() + large_answers_.bytes_max());
  MemoryLine::FillStatus(who, "calls", status);
  large_answers_.FillStatus(who, "large answers", status);
}

}  // namespace lodestone::server
