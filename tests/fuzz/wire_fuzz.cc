// Fuzzes what a ps does with bytes from the network: the split into header and payload, and the checks of a push, which
// must agree with protobuf's own parser, never read outside the message and not depend on the runs it lies in; nor on
// whether its keys come in its parts or as a list. The same bytes are also tried as the calls of a stream Exchange,
// whose lists of keys are remembered, and which refer to memory that is shared; and as answers, which do so as well.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/wire/message.h"
#include "common/wire/shared_memory.h"
#include "proto/parameter_server.pb.h"
#include "server/rpc/key_list_cache.h"
#include "server/rpc/shared_values.h"
#include "server/store/request_payload.h"
#include "server/store/request_view.h"
#include "server/store/table_entry.h"
#include "tests/common/wire/byte_runs.h"
#include "worker/rpc/shared_memory_allocator.h"
#include "worker/rpc/shared_memory_calls.h"

namespace {

namespace server = lodestone::server;
namespace worker = lodestone::worker;

constexpr uint32_t kShards = 4;
constexpr uint64_t kSharedBytes = lodestone::kSharedMemoryHead + 4096;

const lodestone::server::TableMap& Tables() {
  static const lodestone::server::TableMap* const tables = [] {
    auto* map = new lodestone::server::TableMap;
    lodestone::v1::TableSpec dense;
    dense.set_name("d");
    dense.mutable_dense()->add_dims(100);
    dense.mutable_dense()->set_block_elements(16);
    lodestone::v1::TableSpec rows;
    rows.set_name("r");
    rows.mutable_embedding()->set_dim(2);
    for (const auto& spec : {dense, rows}) {
      auto entry = std::make_shared<lodestone::server::TableEntry>();
      entry->table = *lodestone::server::Table::Create(spec, 1, kShards);
      // Short ids, so that the fuzzer finds them.
      map->emplace(spec.has_dense() ? 1 : 2, entry);
    }
    return map;
  }();
  return *tables;
}

std::string Copy(lodestone::ByteView view) {
  std::string bytes(view.size(), '\0');
  view.CopyTo(bytes.data());
  return bytes;
}

lodestone::ByteView ViewOf(const std::string& bytes) {
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

lodestone::Payload PayloadOf(lodestone::ByteView view) {
  std::vector<grpc::Slice> slices;
  for (; !view.empty(); view.Take(view.front().size)) slices.emplace_back(view.front().data, view.front().size);
  return lodestone::Payload(std::move(slices));
}

// What `parts` are seen in when their keys come as a list must be what they are seen in now.
void CheckAsList(lodestone::server::PartKind kind, const lodestone::server::Parts& parts,
                 const lodestone::server::ShardRoles& roles, const std::vector<lodestone::server::PartView>& views) {
  std::string keys, values;
  for (const lodestone::server::PartView& view : views) {
    keys += Copy(view.keys);
    values += Copy(view.gradients);
  }
  const auto listed = server::ViewParts(kind, parts, ViewOf(values), ViewOf(keys), Tables(), roles);
  if (!listed.ok()) std::abort();
  for (size_t i = 0; i < views.size(); ++i) {
    if (Copy((*listed)[i].keys) != Copy(views[i].keys)) std::abort();
    if (Copy((*listed)[i].gradients) != Copy(views[i].gradients)) std::abort();
  }
}

// What comes of a push with these bytes, and of a pull: the statuses, in words.
std::string Check(const lodestone::server::Parts& parts, lodestone::ByteView payload,
                  std::optional<lodestone::ByteView> keys = std::nullopt) {
  using lodestone::server::PartKind;
  lodestone::server::ShardRoles roles(kShards);
  for (lodestone::ShardId shard = 0; shard < kShards; ++shard) roles.Set(shard, lodestone::server::ShardRole::kOwns);
  std::string outcome;
  for (const server::PartKind kind : {server::PartKind::kPush, server::PartKind::kPull}) {
    const auto views = server::ViewParts(kind, parts, payload, keys, Tables(), roles);
    outcome += views.status().ToString();
    if (!views.ok()) continue;
    if (kind == server::PartKind::kPush) outcome += server::CheckFinite(*views).ToString();
    CheckAsList(kind, parts, roles, *views);
  }
  return outcome;
}

// Memory that is shared, zeros behind its head; the client's end.
const std::shared_ptr<lodestone::SharedMemory>& Memory() {
  static const auto* const memory =
      new std::shared_ptr<lodestone::SharedMemory>(*lodestone::SharedMemory::Make(kSharedBytes));
  return *memory;
}

// The ps's end.
lodestone::server::SharedValues* SharedBy(lodestone::server::SharedUse use) {
  const auto share = [](lodestone::server::SharedUse how) {
    auto* const values = new lodestone::server::SharedValues("fuzz");
    values->BeginMessage(how);
    if (values->Accept(Memory()->Offer()) != lodestone::v1::Answer::ACCEPTED) std::abort();
    return values;
  };
  static lodestone::server::SharedValues* const copied = share(lodestone::server::SharedUse::kCopied);
  static lodestone::server::SharedValues* const read = share(lodestone::server::SharedUse::kRead);
  return use == lodestone::server::SharedUse::kCopied ? copied : read;
}

// Finds what a call has in shared memory: none of it may lie anywhere else. The memory stays as it is.
std::string CheckShared(lodestone::server::SharedUse use, const lodestone::v1::Call& call,
                        lodestone::server::RequestPayload* request) {
  lodestone::server::SharedValues* const shared = SharedBy(use);
  shared->BeginMessage(use);
  const absl::Status taken = shared->Take(call, request);
  if (taken.ok() && call.has_values() && Copy(request->payload.bytes()) != std::string(call.values().bytes(), '\0')) {
    std::abort();
  }
  lodestone::server::SharedValues::Room room;
  const absl::Status room_taken = shared->TakeRoom(call, &room);
  if ((room.memory != nullptr) != (room_taken.ok() && call.has_room())) std::abort();
  const uint64_t bytes = call.payload_bytes() % 64;
  std::vector<grpc::Slice> values(2, grpc::Slice(std::string(bytes, '\0')));
  const bool fits = room.memory != nullptr && 2 * bytes <= room.bytes;
  if (fits && (room.offset < lodestone::kSharedMemoryHead || room.bytes > kSharedBytes ||
               room.offset > kSharedBytes - room.bytes)) {
    std::abort();
  }
  if (room.Put(&values) != (fits ? 2 * bytes : 0) || values.empty() != fits) std::abort();
  return taken.ToString() + room_taken.ToString();
}

// What a client makes of the answers of one message, to calls with and without room. Whatever they say, all of the
// memory is free again in the end.
std::string CheckAnswers(const lodestone::v1::ExchangeResponse& header, lodestone::Payload payload) {
  using lodestone::worker::SharedMemoryCalls;
  static auto* const ranges = new std::shared_ptr<lodestone::worker::SharedMemoryAllocator>(
      new lodestone::worker::SharedMemoryAllocator(Memory()));
  worker::SharedMemoryCalls calls("fuzz", 0);
  std::string outcome;
  for (const lodestone::v1::Answer& answer : header.answers()) {
    if (answer.payload_bytes() > payload.size()) break;
    worker::SharedMemoryCalls::Held held{false, *ranges, (*ranges)->Take(100), std::nullopt};
    if (answer.id() % 2 == 0) held.room = (*ranges)->Take(1000);
    const auto room = held.room;
    const auto taken = calls.Take(answer, payload.Take(answer.payload_bytes()), std::move(held));
    outcome += taken.status().ToString();
    if (taken.ok()) {
      const uint64_t bytes = answer.shared_bytes() > 0 ? answer.shared_bytes() : answer.payload_bytes();
      if (Copy(taken->bytes()).size() != bytes || (answer.shared_bytes() > 0 && !room.has_value())) std::abort();
    } else if (room.has_value()) {
      (*ranges)->GiveBack(*room);  // Such an answer ends its stream, and nobody can tell what the ps does with it.
    }
  }
  const auto all = (*ranges)->Take(kSharedBytes - lodestone::kSharedMemoryHead);
  if (!all.has_value()) std::abort();
  (*ranges)->GiveBack(*all);
  return outcome;
}

// What comes of the calls of one message of Exchange, the stream's first, and of the same message again.
std::string CheckCalls(const lodestone::v1::ExchangeRequest& header, const lodestone::Payload& payload) {
  const auto pool = std::make_shared<lodestone::server::KeyListPool>();
  std::string outcome;
  {
    lodestone::server::KeyListCache lists(pool, 4 << 10);
    for (const lodestone::server::SharedUse use :
         {lodestone::server::SharedUse::kRead, lodestone::server::SharedUse::kCopied}) {
      lodestone::Payload rest = payload;
      for (const lodestone::v1::Call& call : header.calls()) {
        if (call.payload_bytes() > rest.size()) return outcome;
        lodestone::server::RequestPayload request = rest.Take(call.payload_bytes());
        auto keys = lodestone::v1::Answer::NO_LIST;
        if (call.has_keys()) outcome += lists.Take(call.keys(), &request, &keys).ToString();
        outcome += std::to_string(keys);
        outcome += CheckShared(use, call, &request);
        outcome += Check(call.has_push() ? call.push().parts() : call.pull().parts(), request.payload.bytes(),
                         request.key_bytes());
      }
      if (pool->bytes() > 4 << 10) std::abort();
    }
  }
  if (pool->bytes() != 0) std::abort();
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lodestone;
  v1::PushRequest whole;
  const bool valid = whole.ParseFromArray(data, static_cast<int>(size));
  std::string first_outcome;
  // The same bytes in one run, and in short ones of a length that the input chooses.
  for (const size_t run_bytes : {size, size == 0 ? 1 : size_t{data[size - 1]} % 13 + 1}) {
    const server::ByteRuns runs(data, size, run_bytes);
    std::string header_bytes;
    ByteView payload;
    v1::PushRequest header;
    std::string outcome = "not a message";
    if (SplitMessage(runs.view(), &header_bytes, &payload).ok() && header.ParseFromString(header_bytes)) {
      if (!valid || whole.payload() != Copy(payload)) std::abort();
      outcome = Check(header.parts(), payload);
    }
    v1::ExchangeRequest calls;
    if (SplitMessage(runs.view(), &(header_bytes = ""), &payload).ok() && calls.ParseFromString(header_bytes)) {
      outcome += CheckCalls(calls, PayloadOf(payload));
    }
    v1::ExchangeResponse answers;
    if (SplitMessage(runs.view(), &(header_bytes = ""), &payload).ok() && answers.ParseFromString(header_bytes)) {
      outcome += CheckAnswers(answers, PayloadOf(payload));
    }
    if (run_bytes == size) {
      first_outcome = outcome;
    } else if (outcome != first_outcome) {
      std::abort();
    }
  }
  return 0;
}
