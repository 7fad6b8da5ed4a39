#include "server/rpc/call_reader.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/wire/message.h"

namespace lodestone::server {
namespace {

// The payload sizes of all calls together are the message's: a call's part of it follows from those before.
absl::Status CheckSizes(const v1::ExchangeRequest& header, size_t payload_bytes) {
  size_t rest = payload_bytes;
  for (const v1::Call& call : header.calls()) {
    if (call.payload_bytes() > rest) {
      return absl::InvalidArgumentError(
          absl::StrCat("the calls' payloads are longer than the message's, which has ", payload_bytes, " bytes"));
    }
    rest -= call.payload_bytes();
  }
  if (rest == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the message's payload has ", payload_bytes, " bytes, but its calls have ", payload_bytes - rest));
}

}  // namespace

absl::StatusOr<std::vector<ReceivedCall>> CallReader::Read(const grpc::ByteBuffer& message) {
  v1::ExchangeRequest header;
  Payload payload;
  LODESTONE_RETURN_IF_ERROR(ParseMessage(message, &header, &payload, limits::kExchangeCallsMax, kCallHeaderBytesMax));
  LODESTONE_RETURN_IF_ERROR(CheckSizes(header, payload.size()));
  transport_.BeginMessage();
  std::vector<ReceivedCall> calls;
  calls.reserve(header.calls_size());
  for (v1::Call& call : *header.mutable_calls()) {
    ReceivedCall& received = calls.emplace_back();
    received.payload = transport_.Receive(call, payload.Take(call.payload_bytes()), &received.route);
    received.call.Swap(&call);
  }
  return calls;
}

}  // namespace lodestone::server
