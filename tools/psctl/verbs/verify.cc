#include "tools/psctl/verbs/verify.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <system_error>
#include <utility>

#include "CLI/App.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/base/numbers_text.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"
#include "server/checkpoint/checkpoint_reader.h"
#include "server/table/table.h"
#include "tools/psctl/files/checkpoint_folder.h"
#include "tools/psctl/text/exit_code.h"
#include "tools/psctl/text/message_json.h"
#include "tools/psctl/verbs/flags.h"
#include "tools/psctl/verbs/verify_live.h"

namespace lodestone::psctl {
namespace {

std::string TimeText(uint64_t ms) {
  if (ms == 0) return "-";
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixMillis(static_cast<int64_t>(ms)), absl::UTCTimeZone());
}

// Which of the numbers below `total` are not among `have`.
std::vector<uint32_t> MissingFrom(const std::set<uint32_t>& have, uint32_t total) {
  std::vector<uint32_t> missing;
  for (uint32_t i = 0; i < total; ++i) {
    if (!have.contains(i)) missing.push_back(i);
  }
  return missing;
}

// Reads and restores the shards of a manifest.
class ManifestCheck {
 public:
  ManifestCheck(const std::string& dir, const server::FoundManifest& found, VerifiedCheckpoint* out)
      : dir_(dir), found_(found), manifest_(*found.manifest), out_(out) {}

  void Run() {
    for (const v1::TableSpec& spec : manifest_.tables()) {
      if (spec.revision() > 0 && !tables_.empty() && tables_.back()->name() == spec.name()) continue;
      auto table = server::Table::Create(spec, manifest_.seed(), manifest_.shards());
      if (!table.ok()) return Report(table.status().message());
      tables_.push_back(*std::move(table));
    }
    const std::set<std::string> needs(manifest_.needs().begin(), manifest_.needs().end());
    for (const v1::ServerManifest::ShardEntry& entry : manifest_.contents()) {
      const server::ShardFiles files = server::FilesOf(dir_, found_, entry);
      for (const v1::ServerManifest::File& file : entry.files()) {
        out_->bytes += file.bytes();
        if (!file.folder().empty() && !needs.contains(file.folder())) {
          Report(absl::StrCat("shard ", entry.shard(), " has a file in ", file.folder(), ", which is not needed"));
        }
      }
      server::Shard shard(entry.shard());
      for (const auto& table : tables_) shard.AddTable(table.get(), 0);
      if (const absl::Status restored = server::RestoreShard(files, &shard); restored.ok()) {
        out_->shards.push_back(entry.shard());
      } else {
        out_->damage.emplace_back(restored.message());
      }
    }
  }

 private:
  void Report(absl::string_view what) { out_->damage.push_back(absl::StrCat(found_.path, ": ", what)); }

  const std::string& dir_;
  const server::FoundManifest& found_;
  const v1::ServerManifest& manifest_;
  VerifiedCheckpoint* const out_;
  std::vector<std::unique_ptr<server::Table>> tables_;
};

// What manifests of one checkpoint must agree on.
void CheckAgreement(const server::FoundManifest& first, const server::FoundManifest& other, VerifiedCheckpoint* out) {
  const v1::ServerManifest& a = *first.manifest;
  const v1::ServerManifest& b = *other.manifest;
  if (a.cluster() == b.cluster() && a.shards() == b.shards() && a.seed() == b.seed()) return;
  out->damage.push_back(absl::StrCat(other.path, ": is of another cluster than ", first.path));
}

// nullopt if it was removed meanwhile, as a ps does with its old ones.
std::optional<VerifiedCheckpoint> VerifyOne(const std::string& dir, std::span<const server::FoundManifest> manifests) {
  VerifiedCheckpoint out;
  out.name = manifests.front().name;
  out.periodic = server::IsPeriodic(out.name);
  const server::FoundManifest* first = nullptr;
  std::set<std::string> needs;
  for (const server::FoundManifest& each : manifests) {
    if (!each.manifest.ok()) {
      out.damage.emplace_back(each.manifest.status().message());
      continue;
    }
    if (first == nullptr) first = &each;
    CheckAgreement(*first, each, &out);
    out.created_ms = std::max(out.created_ms, each.manifest->created_ms());
    out.servers.push_back(each.server);
    out.servers_total = std::max(out.servers_total, each.manifest->servers());
    out.shards_total = std::max(out.shards_total, each.manifest->shards());
    needs.insert(each.manifest->needs().begin(), each.manifest->needs().end());
    ManifestCheck(dir, each, &out).Run();
    std::error_code error;
    if (!out.damage.empty() && !std::filesystem::exists(each.path, error)) return std::nullopt;
  }
  out.needs.assign(needs.begin(), needs.end());
  std::sort(out.shards.begin(), out.shards.end());
  // The owner of a shard and its follower each have it.
  out.shards.erase(std::unique(out.shards.begin(), out.shards.end()), out.shards.end());
  out.shards_missing = MissingFrom({out.shards.begin(), out.shards.end()}, out.shards_total);
  if (out.damage.empty()) {
    if (const auto reader = server::CheckpointReader::Open(dir, out.name); reader.ok()) {
      const auto tables = reader->Tables(out.shards);
      if (!tables.ok()) out.damage.emplace_back(tables.status().message());
    }
  }
  return out;
}

}  // namespace

const char* VerifiedCheckpoint::state() const {
  if (!damage.empty()) return "damaged";
  return periodic || shards_missing.empty() ? "whole" : "incomplete";
}

bool VerifyReport::ok() const {
  return shards_missing.empty() && std::all_of(checkpoints.begin(), checkpoints.end(), [](const auto& checkpoint) {
           return std::strcmp(checkpoint.state(), "whole") == 0;
         });
}

absl::StatusOr<VerifyReport> VerifyCheckpoints(const std::string& path) {
  LODESTONE_ASSIGN_OR_RETURN(const CheckpointFolder folder, FindCheckpointFolder(path));
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<server::FoundManifest> found,
                             server::FindManifests(folder.dir, folder.name));
  if (found.empty()) {
    return absl::NotFoundError(folder.name.empty()
                                   ? absl::StrCat(path, " holds no checkpoint")
                                   : absl::StrCat(path, " was never complete: it holds no ps-INDEX.manifest"));
  }
  VerifyReport report;
  std::set<uint32_t> covered;
  uint32_t shards_total = 0;
  for (size_t begin = 0; begin < found.size();) {
    size_t end = begin;
    while (end < found.size() && found[end].name == found[begin].name) ++end;
    auto verified = VerifyOne(folder.dir, std::span(found).subspan(begin, end - begin));
    begin = end;
    if (!verified.has_value()) continue;
    covered.insert(verified->shards.begin(), verified->shards.end());
    shards_total = std::max(shards_total, verified->shards_total);
    report.checkpoints.push_back(*std::move(verified));
  }
  if (folder.name.empty()) report.shards_missing = MissingFrom(covered, shards_total);
  return report;
}

std::string ToText(const VerifyReport& report, const Painter& paint) {
  Rows rows = {{"checkpoint", "created", "servers", "shards", "bytes", "needs", "state"}};
  std::string remarks;
  for (const VerifiedCheckpoint& each : report.checkpoints) {
    const std::string servers = each.periodic ? absl::StrCat("ps ", NumbersText(each.servers))
                                              : absl::StrCat(each.servers.size(), " of ", each.servers_total);
    rows.push_back({each.name, TimeText(each.created_ms), servers,
                    absl::StrCat(each.shards.size(), " of ", each.shards_total), WithUnit(each.bytes),
                    each.needs.empty() ? "-" : absl::StrJoin(each.needs, ", "),
                    Cell(each.state(), std::strcmp(each.state(), "whole") == 0 ? Style::kGood : Style::kBad)});
    for (const std::string& line : each.damage) absl::StrAppend(&remarks, "damaged: ", line, "\n");
    if (!each.periodic && !each.shards_missing.empty()) {
      absl::StrAppend(&remarks, "incomplete: ", each.name, " lacks shards ", NumbersText(each.shards_missing), "\n");
    }
  }
  if (!report.shards_missing.empty()) {
    absl::StrAppend(&remarks, "no checkpoint holds shards ", NumbersText(report.shards_missing), "\n");
  }
  return absl::StrCat(AlignedTable(rows, paint), remarks.empty() ? "" : "\n", remarks);
}

std::string ToJson(const VerifyReport& report) {
  using Json = nlohmann::ordered_json;
  Json checkpoints = Json::array();
  for (const VerifiedCheckpoint& each : report.checkpoints) {
    checkpoints.push_back(Json{{"name", each.name},
                               {"state", each.state()},
                               {"periodic", each.periodic},
                               {"created", TimeText(each.created_ms)},
                               {"servers", each.servers},
                               {"servers_total", each.servers_total},
                               {"shards", each.shards.size()},
                               {"shards_total", each.shards_total},
                               {"shards_missing", each.shards_missing},
                               {"bytes", each.bytes},
                               {"needs", each.needs},
                               {"damage", each.damage}});
  }
  const Json all = {
      {"ok", report.ok()}, {"checkpoints", std::move(checkpoints)}, {"shards_missing", report.shards_missing}};
  return IndentedJson(all);
}

int RunVerify(const VerifyOptions& options) {
  if (options.path.empty()) return FailUsage("verify", "name a checkpoint's folder (DIR), or --live");
  const absl::StatusOr<VerifyReport> report = VerifyCheckpoints(options.path);
  if (!report.ok()) return Fail("verify", report.status());
  const Painter paint(WantsColor(STDOUT_FILENO));
  std::fputs((options.json ? ToJson(*report) : ToText(*report, paint)).c_str(), stdout);
  return report->ok() ? kExitDone : kExitFailed;
}

const Verb kVerifyVerb = {
    "verify", "Checks checkpoints to their last byte, or a cluster's followers",
    "  psctl verify data/checkpoints                          are the checkpoints there as they were written?\n"
    "  psctl verify --live                                    is every follower's copy the same as its owner's?\n",
    [](CLI::App* command) -> Verb::Run {
      const auto options = std::make_shared<VerifyOptions>();
      const auto live = std::make_shared<VerifyLiveOptions>();
      CLI::Option* const dir =
          command->add_option("DIR", options->path, "A checkpoint's folder, or the folder of all of them")
              ->type_name("DIR");
      AddJson(command, &options->json);
      CLI::Option* const is_live = command->add_flag(
          "--live", options->live, "Compares each shard of a running cluster with its followers' copies instead");
      is_live->excludes(dir);
      AddAddress(command, &live->address, absl::StrCat("With --live: ", kAnyPs))->needs(is_live);
      AddTimeout(command, &live->timeout_ms, "With --live: how long to wait for it")->needs(is_live);
      return [options, live] {
        live->json = options->json;
        return options->live ? RunVerifyLive(*live) : RunVerify(*options);
      };
    }};

}  // namespace lodestone::psctl
