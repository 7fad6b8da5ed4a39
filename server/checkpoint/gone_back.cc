#include "server/checkpoint/gone_back.h"

#include <algorithm>
#include <memory>
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

// Adds what the note at `path` says.
absl::Status ReadNote(const std::string& path, GoneBack* shards) {
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<RecordReader> reader, RecordReader::Open(path));
  v1::GoneBack note;
  ByteView payload;
  if (reader->Next(&note, &payload) != RecordReader::Outcome::kRecord) {
    return absl::DataLossError(absl::StrCat(path, ", which says what shards have gone back to this checkpoint, is ",
                                            "damaged: ", reader->error().message()));
  }
  for (const v1::GoneBack::Entry& entry : note.shards()) {
    uint64_t& lineage = (*shards)[entry.shard()];
    lineage = std::max(lineage, entry.lineage());
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status NoteGoneBack(const std::string& dir, const std::string& name, uint32_t server, const GoneBack& shards) {
  const std::string path = absl::StrCat(dir, "/", name, "/", GoneBackName(server));
  GoneBack all = shards;
  if (FileExists(path)) LODESTONE_RETURN_IF_ERROR(ReadNote(path, &all));
  v1::GoneBack note;
  for (const auto& [shard, lineage] : all) {
    v1::GoneBack::Entry* const entry = note.add_shards();
    entry->set_shard(shard);
    entry->set_lineage(lineage);
  }
  return ReplaceFile(path, RecordBuilder(note, {}).Copy());
}

absl::StatusOr<GoneBack> FindGoneBack(const std::string& dir, const std::string& name) {
  GoneBack shards;
  const std::string folder = absl::StrCat(dir, "/", name);
  const absl::StatusOr<std::vector<std::string>> files = ListFolder(folder);
  if (absl::IsNotFound(files.status())) return shards;
  if (!files.ok()) return files.status();
  for (const std::string& file : *files) {
    if (!absl::EndsWith(file, kGoneBackSuffix)) continue;
    LODESTONE_RETURN_IF_ERROR(ReadNote(absl::StrCat(folder, "/", file), &shards));
  }
  return shards;
}

}  // namespace lodestone::server
