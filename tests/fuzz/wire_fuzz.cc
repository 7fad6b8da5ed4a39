// Fuzzes what a ps does with bytes from the network: the split into header and payload, and the checks of a push, which
// must agree with protobuf's own parser, never read outside the message and not depend on the runs it lies in.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/wire.h"
#include "proto/parameter_server.pb.h"
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

// What comes of a push with these bytes, and of a pull: the statuses, in words.
std::string Check(const lodestone::Parts& parts, lodestone::ByteView payload) {
  using lodestone::PartKind;
  lodestone::ShardRoles roles(kShards);
  for (lodestone::ShardId shard = 0; shard < kShards; ++shard) roles.Set(shard, lodestone::ShardRole::kOwns);
  std::string outcome;
  for (const PartKind kind : {PartKind::kPush, PartKind::kPull}) {
    const auto views = ViewParts(kind, parts, payload, Tables(), roles);
    outcome += views.status().ToString();
    if (views.ok() && kind == PartKind::kPush) outcome += CheckFinite(*views).ToString();
  }
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
      std::string copy(payload.size(), '\0');
      payload.CopyTo(copy.data());
      if (!valid || whole.payload() != copy) std::abort();
      outcome = Check(header.parts(), payload);
    }
    if (run_bytes == size) {
      first_outcome = outcome;
    } else if (outcome != first_outcome) {
      std::abort();
    }
  }
  return 0;
}
