#include "server/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/config/table_check.h"

namespace lodestone::server {
namespace {

// Whether two specifications are of one table, though perhaps with other settings: a ps that had no shard may have made
// it later than others, when these had changed.
bool AreOfOneTable(v1::TableSpec a, v1::TableSpec b) {
  if (a.optimizer().kind_case() != b.optimizer().kind_case()) return false;
  for (v1::TableSpec* const spec : {&a, &b}) {
    spec->clear_optimizer();
    spec->clear_broadcast();
    spec->clear_memory_max_bytes();
    spec->clear_guard();
    spec->clear_consistency();
    spec->clear_held();
    if (!spec->has_embedding()) continue;
    spec->mutable_embedding()->clear_admission();
    // Rows keep their use for eviction, or do not.
    if (spec->embedding().has_eviction()) spec->mutable_embedding()->mutable_eviction()->Clear();
  }
  return Differences(a, b).empty();
}

}  // namespace

ShardFiles FilesOf(const std::string& dir, const FoundManifest& found, const v1::ServerManifest::ShardEntry& entry) {
  ShardFiles files;
  files.shard = entry.shard();
  files.version = entry.version();
  files.term = entry.term();
  files.lineage = LineageOf(*found.manifest, entry);
  for (const v1::ServerManifest::File& file : entry.files()) {
    const std::string& folder = file.folder().empty() ? found.name : file.folder();
    files.pieces.push_back({absl::StrCat(dir, "/", folder, "/", file.name()), {file.bytes(), file.crc32c()}});
  }
  return files;
}

absl::StatusOr<CheckpointReader> CheckpointReader::Open(const std::string& dir, const std::string& name) {
  CheckpointReader reader(dir, name);
  LODESTONE_ASSIGN_OR_RETURN(std::vector<FoundManifest> found, FindManifests(dir, name));
  for (FoundManifest& each : found) {
    if (each.manifest.ok()) {
      reader.manifests_.push_back(std::move(each));
    } else if (name.empty()) {
      reader.problems_.emplace_back(each.manifest.status().message());
    } else {
      return each.manifest.status();
    }
  }
  if (!name.empty() && reader.manifests_.empty()) {
    return absl::NotFoundError(absl::StrCat("there is no checkpoint `", name, "` in ", dir,
                                            ": no folder of that name holds a ps-INDEX.manifest"));
  }
  return reader;
}

absl::Status CheckpointReader::CheckCluster(const std::string& cluster, uint32_t shards, uint64_t seed) const {
  for (const FoundManifest& each : manifests_) {
    const v1::ServerManifest& manifest = *each.manifest;
    const auto error = [&](const std::string& what) {
      return absl::FailedPreconditionError(absl::StrCat(each.path, ": is of a cluster ", what));
    };
    if (manifest.cluster() != cluster) {
      return error(absl::StrCat("named `", manifest.cluster(), "`, and cluster.name is `", cluster,
                                "`; give each cluster a folder of its own"));
    }
    if (manifest.shards() != shards) {
      return error(absl::StrCat("of ", manifest.shards(), " shards, and cluster.shards is ", shards,
                                ": that cannot be changed later"));
    }
    if (manifest.seed() != seed) {
      return error(absl::StrCat("with seed ", manifest.seed(), ", and cluster.seed is ", seed,
                                ": that cannot be changed later"));
    }
  }
  return absl::OkStatus();
}

std::vector<CheckpointReader::State> CheckpointReader::StatesOf(ShardId shard) const {
  std::vector<State> states;
  for (const FoundManifest& each : manifests_) {
    const auto& contents = each.manifest->contents();
    const auto entry =
        std::lower_bound(contents.begin(), contents.end(), shard,
                         [](const v1::ServerManifest::ShardEntry& a, ShardId wanted) { return a.shard() < wanted; });
    if (entry == contents.end() || entry->shard() != shard) continue;
    states.push_back({&each, FilesOf(dir_, each, *entry)});
  }
  std::stable_sort(states.begin(), states.end(), [](const State& a, const State& b) {
    const auto rank = [](const State& state) {
      return std::tuple(state.files.lineage, state.files.term, state.files.version, state.manifest().created_ms());
    };
    return rank(a) > rank(b);
  });
  return states;
}

absl::StatusOr<std::vector<v1::TableSpec>> CheckpointReader::Tables(std::span<const ShardId> shards,
                                                                    Version version_max) const {
  std::set<uint64_t, std::greater<>> lineages;
  std::set<const FoundManifest*> best;  // Of the best states.
  for (const ShardId shard : shards) {
    for (const State& state : StatesOf(shard)) {
      if (state.files.version > version_max) continue;
      lineages.insert(state.manifest().lineage());
      best.insert(state.found);
      break;
    }
  }
  std::vector<const FoundManifest*> manifests;
  for (const FoundManifest& each : manifests_) manifests.push_back(&each);
  std::stable_partition(manifests.begin(), manifests.end(),
                        [&](const FoundManifest* each) { return best.contains(each); });
  struct Known {
    const v1::TableSpec* spec = nullptr;
    const FoundManifest* found = nullptr;
  };
  std::map<std::pair<std::string, uint64_t>, Known> tables;  // By name and revision.
  std::map<std::string, uint64_t> lineage_of;                // By name: the greatest.
  for (const uint64_t lineage : lineages) {
    for (const FoundManifest* const each : manifests) {
      if (each->manifest->lineage() != lineage) continue;
      for (const v1::TableSpec& spec : each->manifest->tables()) {
        if (each->manifest->tables_known()) LODESTONE_RETURN_IF_ERROR(Annotate(CheckKnown(spec), each->path));
        if (lineage_of.try_emplace(spec.name(), lineage).first->second != lineage) continue;
        const auto [known, inserted] = tables.try_emplace({spec.name(), spec.revision()}, Known{&spec, each});
        // Settings that came later may differ for a while: workers may bring several at a time.
        if (inserted || spec.revision() > 0 || AreOfOneTable(*known->second.spec, spec)) continue;
        return absl::FailedPreconditionError(absl::StrCat("table `", spec.name(), "` is not the same in ",
                                                          known->second.found->path, " and ", each->path, ": ",
                                                          Differences(*known->second.spec, spec)));
      }
    }
  }
  std::vector<v1::TableSpec> specs;
  for (const auto& [name_and_revision, known] : tables) specs.push_back(*known.spec);
  return specs;
}

absl::StatusOr<std::optional<CheckpointReader::State>> CheckpointReader::Restore(
    Shard* shard, std::vector<std::string>* damage, Version version_max,
    const std::function<bool(const State&)>& usable) const {
  const std::vector<State> states = StatesOf(shard->id());
  if (states.empty() && !name_.empty()) {
    return absl::NotFoundError(absl::StrCat("checkpoint `", name_, "` in ", dir_, " does not hold shard ", shard->id(),
                                            ", which another ps owned then: copy the folders `", name_,
                                            "` of all ps into one, in a checkpoint.dir that all ps see, or in that of "
                                            "each"));
  }
  absl::Status first;
  for (const State& state : states) {
    if (state.files.version > version_max) {
      if (name_.empty()) continue;
      return absl::FailedPreconditionError(absl::StrCat("checkpoint `", name_, "` holds shard ", shard->id(),
                                                        " at version ", state.files.version, ", which is beyond ",
                                                        version_max));
    }
    if (usable != nullptr && !usable(state)) continue;
    const absl::Status status = RestoreShard(state.files, shard);
    if (status.ok()) return state;
    damage->emplace_back(status.message());
    first.Update(status);
    if (!name_.empty()) break;
  }
  if (first.ok()) return std::nullopt;
  return Annotate(first, absl::StrCat("no state of shard ", shard->id(), " is whole"));
}

}  // namespace lodestone::server
