#include "server/checkpoint/manifest.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/io/file.h"
#include "common/io/record_file.h"

namespace lodestone::server {
namespace {

constexpr absl::string_view kPeriodicPrefix = "auto-ps";
constexpr absl::string_view kServerPrefix = "ps-";
constexpr absl::string_view kManifestSuffix = ".manifest";

bool IsNumber(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isdigit(c); });
}

// Whether `name` names something in a folder, and in no other.
bool IsPlainName(absl::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." && !absl::StrContains(name, '/') &&
         !absl::StrContains(name, '\0');
}

std::optional<uint32_t> ServerOfManifest(absl::string_view file) {
  uint32_t server = 0;
  if (!absl::ConsumePrefix(&file, kServerPrefix) || !absl::ConsumeSuffix(&file, kManifestSuffix)) return std::nullopt;
  if (!IsNumber(file) || !absl::SimpleAtoi(file, &server)) return std::nullopt;
  return server;
}

absl::Status CheckEntry(const v1::ServerManifest::ShardEntry& entry, const v1::ServerManifest& manifest) {
  const auto error = [&](const char* what) {
    return absl::DataLossError(absl::StrCat("shard ", entry.shard(), " ", what));
  };
  if (entry.shard() >= manifest.shards()) return error("is none of the cluster's");
  if (entry.files().empty()) return error("has no files");
  for (const v1::ServerManifest::File& file : entry.files()) {
    if (!IsPlainName(file.name())) return error("has a file whose name is none");
    if (!file.folder().empty() && !IsPlainName(file.folder()))
      return error("has a file in a folder whose name is none");
  }
  return absl::OkStatus();
}

absl::Status CheckManifest(const v1::ServerManifest& manifest) {
  if (manifest.format() != kCheckpointFormat) {
    return absl::DataLossError(
        absl::StrCat("is of format ", manifest.format(), "; this program reads format ", kCheckpointFormat));
  }
  for (int i = 0; i < manifest.contents_size(); ++i) {
    LODESTONE_RETURN_IF_ERROR(CheckEntry(manifest.contents(i), manifest));
    if (i > 0 && manifest.contents(i).shard() <= manifest.contents(i - 1).shard()) {
      return absl::DataLossError("does not list its shards in order");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckCheckpointName(absl::string_view name) {
  const auto error = [&](const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrCat("a checkpoint cannot be called `", absl::CHexEscape(name), "`: ", what));
  };
  if (name.empty() || name.size() > limits::kCheckpointNameBytesMax) {
    return error(absl::StrCat("a name has 1 to ", limits::kCheckpointNameBytesMax, " characters"));
  }
  for (const char c : name) {
    if (!absl::ascii_isalnum(c) && c != '_' && c != '.' && c != '-')
      return error("a name holds only A-Z a-z 0-9 _ . -");
  }
  if (!absl::ascii_isalnum(name.front())) return error("a name begins with a letter or digit");
  if (absl::StartsWith(name, kPeriodicPrefix)) {
    return error(absl::StrCat("names that begin with ", kPeriodicPrefix, " are those of periodic ones"));
  }
  return absl::OkStatus();
}

std::string ManifestName(uint32_t server) { return absl::StrCat(kServerPrefix, server, kManifestSuffix); }

std::string GoneBackName(uint32_t server) { return absl::StrCat(kServerPrefix, server, kGoneBackSuffix); }

std::string ShardFileName(uint32_t server, ShardId shard) {
  return absl::StrFormat("%s%u.shard-%05u", kServerPrefix, server, shard);
}

bool IsFileOf(uint32_t server, absl::string_view file) {
  return absl::StartsWith(file, absl::StrCat(kServerPrefix, server, "."));
}

std::string PeriodicName(uint32_t server, uint64_t number) {
  return absl::StrFormat("%s%u-%06u", kPeriodicPrefix, server, number);
}

std::optional<uint64_t> NumberOfPeriodic(uint32_t server, absl::string_view name) {
  uint64_t number = 0;
  if (!absl::ConsumePrefix(&name, absl::StrCat(kPeriodicPrefix, server, "-"))) return std::nullopt;
  if (!IsNumber(name) || !absl::SimpleAtoi(name, &number)) return std::nullopt;
  return number;
}

bool IsPeriodic(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, kPeriodicPrefix)) return false;
  const size_t dash = name.find('-');
  return dash != name.npos && IsNumber(name.substr(0, dash)) && IsNumber(name.substr(dash + 1));
}

bool FileExists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error) || error;
}

absl::StatusOr<v1::ServerManifest> ReadManifest(const std::string& path) {
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<RecordReader> reader, RecordReader::Open(path));
  v1::ServerManifest manifest;
  v1::ServerManifest more;
  ByteView payload;
  switch (reader->Next(&manifest, &payload)) {
    case RecordReader::Outcome::kRecord:
      break;
    case RecordReader::Outcome::kEnd:
      return absl::DataLossError(absl::StrCat(path, ": is empty"));
    case RecordReader::Outcome::kTorn:
    case RecordReader::Outcome::kDamaged:
      return reader->error();
  }
  if (!payload.empty() || reader->Next(&more, &payload) != RecordReader::Outcome::kEnd) {
    return absl::DataLossError(
        absl::StrCat(path, ": there is more after the manifest, which ends at offset ", reader->offset()));
  }
  LODESTONE_RETURN_IF_ERROR(Annotate(CheckManifest(manifest), path));
  return manifest;
}

absl::Status WriteManifest(const std::string& path, const v1::ServerManifest& manifest) {
  return ReplaceFile(path, RecordBuilder(manifest, {}).Copy());
}

absl::StatusOr<std::vector<FoundManifest>> FindManifests(const std::string& dir, const std::string& name) {
  std::vector<FoundManifest> found;
  std::error_code error;
  if (!std::filesystem::exists(dir, error) && !error) return found;
  std::vector<std::string> names = {name};
  if (name.empty()) {
    LODESTONE_ASSIGN_OR_RETURN(names, ListFolder(dir));
  }
  for (const std::string& checkpoint : names) {
    const std::string folder = absl::StrCat(dir, "/", checkpoint);
    if (!std::filesystem::is_directory(folder, error)) continue;
    const absl::StatusOr<std::vector<std::string>> files = ListFolder(folder);
    if (absl::IsNotFound(files.status())) continue;  // It was removed just now.
    if (!files.ok()) return files.status();
    const size_t first = found.size();
    for (const std::string& file : *files) {
      const std::optional<uint32_t> server = ServerOfManifest(file);
      if (!server.has_value()) continue;
      const std::string path = absl::StrCat(folder, "/", file);
      absl::StatusOr<v1::ServerManifest> manifest = ReadManifest(path);
      if (absl::IsNotFound(manifest.status())) continue;
      if (manifest.ok() && manifest->server() != *server) {
        manifest = absl::DataLossError(absl::StrCat(path, ": is the manifest of ps ", manifest->server()));
      }
      found.push_back({checkpoint, *server, path, std::move(manifest)});
    }
    std::sort(found.begin() + static_cast<ptrdiff_t>(first), found.end(),
              [](const FoundManifest& a, const FoundManifest& b) { return a.server < b.server; });
  }
  return found;
}

}  // namespace lodestone::server
