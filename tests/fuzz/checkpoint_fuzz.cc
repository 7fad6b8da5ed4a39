// Fuzzes the readers of checkpoints: a manifest, and a shard's file, which the input spoils with checksums that fit,
// must end in a shard that holds what they say, or in DATA_LOSS and a shard as it was before. The first byte chooses
// which of them, and whether the rest is a message of its own instead. To run it for a minute:
//   bazel build --config=asan //tests/fuzz:checkpoint_fuzz
//   bazel-bin/tests/fuzz/checkpoint_fuzz -max_total_time=60 -timeout=10 -max_len=512 "$(mktemp -d)"
#include <fcntl.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/io/crc32c.h"
#include "common/io/memory_file.h"
#include "common/io/record_file.h"
#include "server/checkpoint/manifest.h"
#include "server/checkpoint/shard_file.h"
#include "tests/fuzz/mutation.h"
#include "tests/server/shard/filled_shard.h"

namespace {

using namespace lodestone;  // NOLINT: a program of its own.

constexpr ShardId kShard = 1;
constexpr uint32_t kShards = 2;
constexpr uint32_t kPushes = 12;

std::unique_ptr<MemoryFile> FileWith(const std::string& content) {
  auto file = MemoryFile::Make(content);
  LODESTONE_CHECK(file.ok());
  return *std::move(file);
}

server::FilledShard MakeShard() { return server::FilledShard(kShard, kShards, server::SpecsWith("adagrad")); }

// The records of a shard's file as it is written.
const std::vector<FuzzPiece>& GoodRecords() {
  static const std::vector<FuzzPiece>* const records = [] {
    server::FilledShard shard = MakeShard();
    shard.Run(1, kPushes);
    const auto written = FileWith("");
    auto file = File::Open(written->path(), O_WRONLY);
    LODESTONE_CHECK(file.ok());
    const std::atomic<bool> stop{false};
    LODESTONE_CHECK(server::WriteShardFile(shard->CollectState(nullptr), stop, &*file).ok());
    auto reader = RecordReader::Open(written->path());
    LODESTONE_CHECK(reader.ok());
    auto* all = new std::vector<FuzzPiece>;
    RecordReader::Record record;
    while ((*reader)->Next(&record) == RecordReader::Outcome::kRecord) {
      std::string payload(record.payload.size(), '\0');
      record.payload.CopyTo(payload.data());
      all->push_back({std::string(record.message), std::move(payload)});
    }
    return all;
  }();
  return *records;
}

std::string FileOf(const std::vector<FuzzPiece>& pieces) {
  std::string file;
  for (const FuzzPiece& piece : pieces) {
    const ByteView payload(reinterpret_cast<const uint8_t*>(piece.payload.data()), piece.payload.size());
    file += RecordBuilder(std::string_view(piece.message), {&payload, 1}).Copy();
  }
  return file;
}

void TryShardFile(const std::vector<FuzzPiece>& pieces, bool spoilt) {
  const std::string content = FileOf(pieces);
  const auto file = FileWith(content);
  server::ShardFiles files;
  files.shard = kShard;
  files.version = kPushes;
  files.pieces.push_back({file->path(), {content.size(), Crc32c(content.data(), content.size())}});
  server::FilledShard shard = MakeShard();
  const uint64_t before = shard.checksum();
  const absl::Status status = server::RestoreShard(files, &*shard);
  if (!spoilt) LODESTONE_CHECK(status.ok());
  if (status.ok()) {
    LODESTONE_CHECK(shard->version() == kPushes);
    shard.SetClock(1'000'000);
    shard.Run(kPushes + 1, kPushes + 3);  // It is of use.
    return;
  }
  LODESTONE_CHECK(absl::IsDataLoss(status) && !status.message().empty());
  LODESTONE_CHECK(shard->version() == 0 && shard.checksum() == before);
}

std::string GoodManifest() {
  v1::ServerManifest manifest;
  manifest.set_format(server::kCheckpointFormat);
  manifest.set_cluster("lodestone");
  manifest.set_name("before");
  manifest.set_servers(2);
  manifest.set_shards(kShards);
  for (const v1::TableSpec& spec : server::SpecsWith("adam")) *manifest.add_tables() = spec;
  for (ShardId shard = 0; shard < kShards; ++shard) {
    v1::ServerManifest::ShardEntry* const entry = manifest.add_contents();
    entry->set_shard(shard);
    entry->set_version(shard + 5);
    v1::ServerManifest::File* const file = entry->add_files();
    file->set_name(server::ShardFileName(0, shard));
    file->set_bytes(100);
  }
  return manifest.SerializeAsString();
}

void TryManifest(const std::vector<FuzzPiece>& pieces) {
  const auto file = FileWith(FileOf(pieces));
  const auto manifest = server::ReadManifest(file->path());
  if (!manifest.ok()) LODESTONE_CHECK(!manifest.status().message().empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput input(data, size);
  const uint8_t mode = input.Byte();
  const bool spoilt = !input.empty();
  std::vector<FuzzPiece> pieces = GoodRecords();
  switch (mode % 4) {
    case 0:
      Spoil(&input, &pieces);
      TryShardFile(pieces, spoilt);
      break;
    case 1:
      pieces[input.Below(pieces.size())].message = input.Rest();
      TryShardFile(pieces, true);
      break;
    case 2:
      pieces = {{GoodManifest(), ""}};
      Spoil(&input, &pieces);
      TryManifest(pieces);
      break;
    case 3:
      TryManifest({{input.Rest(), ""}});
      break;
  }
  return 0;
}
