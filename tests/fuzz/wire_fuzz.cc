// Fuzzes what a ps does with bytes from the network: the split into header and payload, and the checks of a push, which
// must agree with protobuf's own parser, never read outside the message and not depend on the runs it lies in; nor on
// whether its keys come in its parts or as a list. The same bytes are also tried as the calls of a stream Exchange,
// whose lists of keys are remembered.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/wire.h"
#include "proto/parameter_server.pb.h"
#include "server/key_lists.h"
#include "server/numbers.h"
#include "server/parts.h"
#include "tests/server/byte_runs.h"

namespace {

constexpr uint32_t kShards = 4;

const lodestone::TableMap& Tables() {
  static const lodestone::TableMap* const tables = [] {
    auto* map = new lodestone::TableMap;
    lodestone::v1::TableSpec dense;
    dense.set_name("d");
    dense.mutable_dense()->add_dims(100);
    dense.mutable_dense()->set_block_elements(16);
    lodestone::v1::TableSpec rows;
    rows.set_name("r");
    rows.mutable_embedding()->set_dim(2);
    for (const auto& spec : {dense, rows}) {
      auto entry = std::make_shared<lodestone::TableEntry>();
      entry->table = *lodestone::Table::Create(spec, 1, kShards);
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

// What `parts` are seen in when their keys come as a list must be what they are seen in now.
void CheckAsList(lodestone::PartKind kind, const lodestone::Parts& parts, const lodestone::ShardRoles& roles,
                 const std::vector<lodestone::PartView>& views) {
  std::string keys, values;
  for (const lodestone::PartView& view : views) {
    keys += Copy(view.keys);
    values += Copy(view.gradients);
  }
  const auto listed = ViewParts(kind, parts, {ViewOf(values), ViewOf(keys)}, Tables(), roles);
  if (!listed.ok()) std::abort();
  for (size_t i = 0; i < views.size(); ++i) {
    if (Copy((*listed)[i].keys) != Copy(views[i].keys)) std::abort();
    if (Copy((*listed)[i].gradients) != Copy(views[i].gradients)) std::abort();
  }
}

// What comes of a push with these bytes, and of a pull: the statuses, in words.
std::string Check(const lodestone::Parts& parts, const lodestone::PartBytes& bytes) {
  using lodestone::PartKind;
  lodestone::ShardRoles roles(kShards);
  for (lodestone::ShardId shard = 0; shard < kShards; ++shard) roles.Set(shard, lodestone::ShardRole::kOwns);
  std::string outcome;
  for (const PartKind kind : {PartKind::kPush, PartKind::kPull}) {
    const auto views = ViewParts(kind, parts, bytes, Tables(), roles);
    outcome += views.status().ToString();
    if (!views.ok()) continue;
    if (kind == PartKind::kPush) outcome += CheckFinite(*views).ToString();
    CheckAsList(kind, parts, roles, *views);
  }
  return outcome;
}

// What comes of the calls of one message of Exchange, the stream's first, and of the same message again.
std::string CheckCalls(const lodestone::v1::ExchangeRequest& header, const lodestone::Payload& payload) {
  const auto list_bytes = std::make_shared<std::atomic<size_t>>(0);
  std::string outcome;
  {
    lodestone::KeyLists lists(list_bytes, 4 << 10);
    for (int times = 0; times < 2; ++times) {
      lodestone::Payload rest = payload;
      for (const lodestone::v1::Call& call : header.calls()) {
        if (call.payload_bytes() > rest.size()) return outcome;
        lodestone::Numbers numbers = rest.Take(call.payload_bytes());
        auto keys = lodestone::v1::Answer::NO_LIST;
        if (call.has_keys()) outcome += lists.Take(call.keys(), &numbers, &keys).ToString();
        outcome += std::to_string(keys);
        lodestone::PartBytes bytes = numbers.payload.bytes();
        if (numbers.keys.has_value()) bytes.keys = numbers.keys->bytes();
        outcome += Check(call.has_push() ? call.push().parts() : call.pull().parts(), bytes);
      }
      if (*list_bytes > 4 << 10) std::abort();
    }
  }
  if (*list_bytes != 0) std::abort();
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
    const ByteRuns runs(data, size, run_bytes);
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
      std::vector<grpc::Slice> slices;
      for (; !payload.empty(); payload.Take(payload.front().size)) {
        slices.emplace_back(payload.front().data, payload.front().size);
      }
      outcome += CheckCalls(calls, Payload(std::move(slices)));
    }
    if (run_bytes == size) {
      first_outcome = outcome;
    } else if (outcome != first_outcome) {
      std::abort();
    }
  }
  return 0;
}
