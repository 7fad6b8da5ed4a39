#include "server/checkpoint/gone_back.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/io/file.h"
#include "common/io/record_file.h"
#include "proto/checkpoint.pb.h"
#include "server/checkpoint/manifest.h"

namespace lodestone::server {
namespace {

// By shard and time, the greatest lineage that it had: one that has gone back elsewhere in between may come back to an
// earlier time.
using Times = std::map<std::pair<ShardId, uint32_t>, uint64_t>;

void Add(ShardId shard, uint32_t time, uint64_t lineage, Times* shards) {
  uint64_t& greatest = (*shards)[{shard, time}];
  greatest = std::max(greatest, lineage);
}

// Adds what the note at `path` says.
absl::Status ReadNote(const std::string& path, Times* shards) {
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<RecordReader> reader, RecordReader::Open(path));
  v1::GoneBack note;
  ByteView payload;
  if (reader->Next(&note, &payload) != RecordReader::Outcome::kRecord) {
    return absl::DataLossError(absl::StrCat(path, ", which says what shards have gone back to this checkpoint, is ",
                                            "damaged: ", reader->error().message()));
  }
  for (const v1::GoneBack::Entry& entry : note.shards()) {
    Add(entry.shard(), std::max(entry.time(), uint32_t{1}), entry.lineage(), shards);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status NoteGoneBack(const std::string& dir, const CheckpointToLoad& load, uint32_t server,
                          const GoneBack& shards) {
  const std::string path = absl::StrCat(dir, "/", load.name, "/", GoneBackName(server));
  Times all;
  for (const auto& [shard, lineage] : shards) Add(shard, load.time, lineage, &all);
  if (FileExists(path)) LODESTONE_RETURN_IF_ERROR(ReadNote(path, &all));
  v1::GoneBack note;
  for (const auto& [at, lineage] : all) {
    v1::GoneBack::Entry* const entry = note.add_shards();
    entry->set_shard(at.first);
    entry->set_time(at.second);
    entry->set_lineage(lineage);
  }
  return ReplaceFile(path, RecordBuilder(note, {}).Copy());
}

absl::StatusOr<GoneBack> FindGoneBack(const std::string& dir, const CheckpointToLoad& load) {
  const std::string folder = absl::StrCat(dir, "/", load.name);
  const absl::StatusOr<std::vector<std::string>> files = ListFolder(folder);
  if (absl::IsNotFound(files.status())) return GoneBack();
  if (!files.ok()) return files.status();
  Times all;
  for (const std::string& file : *files) {
    if (!absl::EndsWith(file, kGoneBackSuffix)) continue;
    LODESTONE_RETURN_IF_ERROR(ReadNote(absl::StrCat(folder, "/", file), &all));
  }
  GoneBack shards;
  for (const auto& [at, lineage] : all) {
    if (at.second >= load.time) shards[at.first] = std::max(shards[at.first], lineage);
  }
  return shards;
}

}  // namespace lodestone::server
