// Fuzzes what a follower takes from an owner, which is what a log holds too: tables, a shard's state, updates. The
// input spoils a good sequence of them; whatever it is, the follower applies it or says what is wrong, and goes on. To
// run it for a minute:
//   bazel build --config=asan //tests/fuzz:updates_fuzz
//   bazel-bin/tests/fuzz/updates_fuzz -max_total_time=60 -timeout=10 -max_len=512 "$(mktemp -d)"
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/base/time_source.h"
#include "proto/replication.pb.h"
#include "server/checkpoint/shard_file.h"
#include "server/store/store.h"
#include "tests/fuzz/mutation.h"
#include "tests/server/store/store_fixture.h"

namespace {

using namespace lodestone;  // NOLINT: a program of its own.

constexpr ShardId kShard = 0;
constexpr BlockLayout kLayout = {8, 4};

std::unique_ptr<server::Store> MakeStore(const TimeSource* time) {
  server::Store::Options options;
  options.shards = 1;
  options.memory_max_bytes = 8 << 20;
  options.time = time;
  return std::make_unique<server::Store>(options);
}

void Add(const v1::FollowItem& item, std::string payload, std::vector<FuzzPiece>* pieces) {
  pieces->push_back({item.SerializeAsString(), std::move(payload)});
}

// An update of both tables as the shard's owner logs it.
void AddPush(Version version, std::vector<FuzzPiece>* pieces) {
  server::RequestBuilder<v1::PushRequest> push(1);
  push.AddDense(TableIdOf("d"), kLayout, 1.0f);
  push.AddRows(TableIdOf("r"), 2, {{version, 1.0f}, {7, 2.0f}}, true);
  v1::FollowItem item;
  v1::LogRecord& record = *item.mutable_record();
  record.set_shard(kShard);
  record.set_version(version);
  record.set_now_ms(1'000'000 + version);
  record.mutable_push()->set_worker(server::kWorker);
  record.mutable_push()->set_sequence(version);
  *record.mutable_push()->mutable_parts() = push.header.parts();
  Add(item, push.bytes(), pieces);
}

std::vector<FuzzPiece> MakeGood() {
  const ManualTime time;
  const std::unique_ptr<server::Store> owner = MakeStore(&time);
  owner->OwnShards({kShard});
  std::vector<v1::TableSpec> specs = {server::AddingDense("d", kLayout.elements, kLayout.block_elements),
                                      server::AddingRows("r", 2)};
  specs[1].mutable_embedding()->mutable_eviction()->set_ttl_ms(60'000);
  std::vector<FuzzPiece> pieces;
  for (const v1::TableSpec& spec : specs) {
    LODESTONE_CHECK(owner->tables().Ensure(spec).ok());
    v1::FollowItem item;
    *item.mutable_table() = spec;
    Add(item, "", &pieces);
  }
  v1::FollowItem item;
  item.mutable_sessions()->add_open(server::kWorker);
  Add(item, "", &pieces);
  item.mutable_state_begins()->set_shard(kShard);
  Add(item, "", &pieces);
  server::Shard::State state;
  owner->shards().Run(kShard, [&state](server::Shard* shard) { state = shard->CollectState(nullptr); });
  LODESTONE_CHECK(server::VisitState(state, [&](const v1::CheckpointRecord& record, std::span<const ByteView> payload) {
                    std::string bytes;
                    for (const ByteView& view : payload) {
                      const size_t at = bytes.size();
                      bytes.resize(at + view.size());
                      view.CopyTo(bytes.data() + at);
                    }
                    *item.mutable_state() = record;
                    Add(item, bytes, &pieces);
                    return absl::OkStatus();
                  }).ok());
  item.mutable_state_ends()->set_shard(kShard);
  Add(item, "", &pieces);
  for (Version version = 1; version <= 3; ++version) AddPush(version, &pieces);
  v1::LogRecord& expiry = *item.mutable_record();
  expiry.set_shard(kShard);
  expiry.set_version(4);
  expiry.set_now_ms(2'000'000);
  v1::EvictedRows* const evicted = expiry.mutable_expiry()->add_evicted();
  evicted->set_table(TableIdOf("r"));
  evicted->add_keys(7);
  Add(item, "", &pieces);
  v1::LogRecord& restored = *item.mutable_record();
  restored.set_version(5);
  restored.mutable_restored()->set_table(TableIdOf("d"));
  restored.mutable_restored()->set_last(true);
  Add(item, "", &pieces);
  return pieces;
}

// As server/replication/follow_link.cc takes an item.
absl::Status Take(server::Store* store, const v1::FollowItem& item, const std::string& bytes, bool* begun) {
  const std::span<const uint8_t> payload(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  switch (item.what_case()) {
    case v1::FollowItem::kRecord:
      if (item.record().version() > 0 && item.record().shard() != kShard) return absl::InternalError("not asked for");
      return store->replayer().ReplayFollowed(item.record(), Payload({grpc::Slice(bytes)}));
    case v1::FollowItem::kStateBegins:
      if (item.state_begins().shard() != kShard) return absl::InternalError("not asked for");
      store->replayer().ClearState(kShard);
      *begun = true;
      return absl::OkStatus();
    case v1::FollowItem::kState:
      if (!*begun) return absl::InternalError("has not begun");
      return store->replayer().RestoreRecord(kShard, item.state(), payload);
    case v1::FollowItem::kStateEnds:
      if (!*begun || item.state_ends().shard() != kShard) return absl::InternalError("has not begun");
      *begun = false;
      return store->replayer().FinishState(kShard, item.state_ends().version(), item.state_ends().term());
    case v1::FollowItem::kSessions: {
      const std::vector<Incarnation> open(item.sessions().open().begin(), item.sessions().open().end());
      store->replayer().AddSessions(open, item.sessions().forgotten_max());
      return absl::OkStatus();
    }
    case v1::FollowItem::kTable: {
      v1::LogRecord record;
      *record.mutable_table() = item.table();
      return store->replayer().ReplayFollowed(record, Payload());
    }
    default:
      return absl::UnimplementedError("not known");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<FuzzPiece>* const good = new std::vector<FuzzPiece>(MakeGood());
  std::vector<FuzzPiece> pieces = *good;
  FuzzInput input(data, size);
  Spoil(&input, &pieces);
  const ManualTime time;
  const std::unique_ptr<server::Store> store = MakeStore(&time);
  store->OwnShards({});
  LODESTONE_CHECK(store->replayer().Follow(kShard).ok());
  bool begun = false;
  for (const FuzzPiece& piece : pieces) {
    v1::FollowItem item;
    if (!item.ParseFromString(piece.message)) continue;
    const absl::Status status = Take(store.get(), item, piece.payload, &begun);
    if (!status.ok()) LODESTONE_CHECK(!status.message().empty());
    if (size == 0) LODESTONE_CHECK(status.ok());
    // The link breaks at the first error, and the next one begins with a state.
    if (!status.ok()) begun = false;
  }
  if (size == 0) LODESTONE_CHECK(store->shards().VersionOf(kShard) == 5);
  v1::StatusResponse status;
  store->FillStatus(&status);
  return 0;
}
