#include "worker/rpc/frame_codec.h"

#include "absl/strings/cord.h"
#include "common/telemetry/metrics.h"
#include "grpcpp/support/slice.h"
#include "worker/rpc/part_expansion.h"

namespace lodestone::worker {
namespace {

// Marks the error of a forgotten list.
constexpr char kForgotten[] = "lodestone/list-forgotten";

constexpr char kKeyLists[] = "lodestone_worker_key_lists_total";
constexpr char kKeyListsHelp[] =
    "Lists of keys in calls, by outcome: sent; referred to, as the ps remembers them; forgotten by the ps, and sent "
    "again.";
CounterMetric sent_metric(kKeyLists, kKeyListsHelp, {{"list", "sent"}});
CounterMetric referred_metric(kKeyLists, kKeyListsHelp, {{"list", "referred"}});
CounterMetric forgotten_metric(kKeyLists, kKeyListsHelp, {{"list", "forgotten"}});

}  // namespace

bool IsListForgotten(const absl::Status& status) { return status.GetPayload(kForgotten).has_value(); }

size_t FrameCodec::BytesMax(const CallPayload& payload, v1::Call* call) {
  call->set_id(UINT64_MAX);  // The longest there is.
  call->set_payload_bytes(payload.keys.size() + SizeOf(payload.values));
  if (payload.list.count > 0) {
    SetName(payload.list, call->mutable_keys());
    call->mutable_keys()->set_place(v1::KeyList::REMEMBERED);
  }
  call->clear_shared_memory();
  call->clear_values();
  call->clear_room();
  return call->ByteSizeLong() + call->payload_bytes() + ExpansionBytesMax(*call);
}

void FrameCodec::Share(const CallPayload& payload, v1::Call* call, Encoding* encoding) {
  encoding->shared = shared_.Put(payload, call);
}

Frame FrameCodec::Encode(uint64_t id, const CallPayload& payload, v1::Call* call, Encoding* encoding) {
  if (!takes_several_shards_.load(std::memory_order_relaxed) && ExpansionBytesMax(*call) > 0) {
    v1::Call plain = *call;
    CallPayload by_shard = payload;
    ExpandCall(&plain, &by_shard.parts);
    return EncodeAsItIs(id, by_shard, &plain, encoding);
  }
  return EncodeAsItIs(id, payload, call, encoding);
}

Frame FrameCodec::EncodeAsItIs(uint64_t id, const CallPayload& payload, v1::Call* call, Encoding* encoding) {
  std::vector<grpc::Slice> slices = MessagePayload(payload, call, encoding);
  call->set_id(id);
  call->set_payload_bytes(SizeOf(slices));
  return Frame(*call, std::move(slices), 0, call->values().bytes());
}

std::vector<grpc::Slice> FrameCodec::MessagePayload(const CallPayload& payload, v1::Call* call, Encoding* encoding) {
  call->clear_keys();
  encoding->list = {};
  encoding->list_sent = true;
  const bool shared = call->has_values();
  if (payload.keys.size() == 0) return shared ? std::vector<grpc::Slice>{} : payload.values;
  KeyListName list = payload.list;
  if (list.count == 0) {
    if (!shared) return KeysInParts(payload);
    // Too short to be worth remembering, but the values are elsewhere.
    list = NameKeys(payload.keys.begin(), static_cast<uint32_t>(payload.keys.size() / sizeof(Key)));
  } else {
    encoding->list = list;
  }
  SetName(list, call->mutable_keys());
  bool known = false;
  bool remembered = false;
  {
    MutexLock lock(&mu_);
    known = knows_lists_;
    remembered = (known || shared) && !payload.forgotten && lists_.Find(list) != nullptr;
  }
  if (!known && !shared) return KeysInParts(payload);
  if (remembered) {
    referred_metric.Add(1);
    call->mutable_keys()->set_place(v1::KeyList::REMEMBERED);
    encoding->list_sent = false;
    return shared ? std::vector<grpc::Slice>{} : payload.values;
  }
  sent_metric.Add(1);
  call->mutable_keys()->set_place(v1::KeyList::FIRST);
  return shared ? std::vector<grpc::Slice>{payload.keys} : KeysFirst(payload);
}

void FrameCodec::Learn(const v1::Answer& answer, const Encoding& encoding) {
  if (answer.takes_several_shards()) takes_several_shards_.store(true, std::memory_order_relaxed);
  if (encoding.list.count == 0 || answer.keys() == v1::Answer::NO_LIST) return;
  MutexLock lock(&mu_);
  knows_lists_ = true;
  if (answer.keys() == v1::Answer::REMEMBERED) lists_.Add(encoding.list, {});
  if (answer.keys() == v1::Answer::FORGOTTEN) lists_.Erase(encoding.list);
}

absl::StatusOr<Payload> FrameCodec::Decode(const v1::Answer& answer, Payload payload, Encoding* encoding) {
  return shared_.Take(answer, std::move(payload), std::move(encoding->shared));
}

absl::Status FrameCodec::StatusOf(const v1::Answer& answer, const Encoding& encoding) {
  absl::Status status(static_cast<absl::StatusCode>(answer.code()), answer.error());
  if (answer.keys() == v1::Answer::FORGOTTEN && !encoding.list_sent) {
    forgotten_metric.Add(1);
    status.SetPayload(kForgotten, absl::Cord());
  }
  return status;
}

}  // namespace lodestone::worker
