// Fuzzes what a ps does with bytes from the network: the split into header and payload, and the checks of a push, which
// must agree with protobuf's own parser and never read outside the message.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "common/wire.h"
#include "proto/parameter_server.pb.h"
#include "server/parts.h"

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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lodestone;
  const std::string_view message(reinterpret_cast<const char*>(data), size);
  std::string header_bytes;
  std::string_view payload;
  v1::PushRequest whole;
  const bool valid = whole.ParseFromArray(data, static_cast<int>(size));
  const bool split = SplitMessage(message, &header_bytes, &payload).ok();
  v1::PushRequest header;
  if (!split || !header.ParseFromString(header_bytes)) return 0;
  if (!valid || whole.payload() != payload) std::abort();
  const std::vector<bool> owned(kShards, true);
  const auto* bytes = reinterpret_cast<const uint8_t*>(payload.data());
  for (const PartKind kind : {PartKind::kPush, PartKind::kPull}) {
    const auto views = ViewParts(kind, header.parts(), bytes, payload.size(), Tables(), owned);
    if (views.ok() && kind == PartKind::kPush) CheckFinite(*views).IgnoreError();
  }
  return 0;
}
