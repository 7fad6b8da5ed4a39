#include "server/coordinator/shard_route.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace lodestone::server {
namespace {

constexpr size_t kNamesMax = 16;  // Named in one message.

absl::Status CheckMapped(const ClusterOptions& options, const MemberTable& members, const ShardAssignment& shards) {
  if (shards.mapped()) return absl::OkStatus();
  std::vector<uint32_t> missing;
  for (uint32_t server = 0; server < options.first_servers(); ++server) {
    if (!members.Alive(members.servers()[server])) missing.push_back(server);
  }
  std::string names = absl::StrJoin(missing.begin(), missing.begin() + std::min(missing.size(), kNamesMax), ", ");
  if (missing.size() > kNamesMax) absl::StrAppend(&names, ", ...");
  return absl::UnavailableError(absl::StrCat("waiting for ", missing.size(), " of ", options.first_servers(),
                                             " servers: index ", names,
                                             missing.size() == 1 ? " has not joined" : " have not joined"));
}

absl::Status CheckDecided(const MemberTable& members, const ShardAssignment& shards) {
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> open;  // How many shards, by follower and owner.
  for (ShardId shard = 0; shard < shards.undecided().size(); ++shard) {
    if (shards.undecided()[shard]) ++open[{shards.copies().firsts()[shard] - 1, shards.owners()[shard]}];
  }
  if (open.empty()) return absl::OkStatus();
  std::vector<std::string> lines;
  for (const auto& [pair, count] : open) {
    const MemberPlace& follower = members.servers()[pair.first];
    lines.push_back(absl::StrCat(members.Describe(follower), ", ", members.LastHeard(follower), ", may own ", count,
                                 " of the shards of ps ", pair.second));
  }
  return absl::UnavailableError(absl::StrCat("waiting for followers that had all: ", absl::StrJoin(lines, "; ")));
}

}  // namespace

absl::StatusOr<v1::RouteResponse> RouteOf(const ClusterOptions& options, const MemberTable& members,
                                          const ShardAssignment& shards) {
  LODESTONE_RETURN_IF_ERROR(CheckMapped(options, members, shards));
  LODESTONE_RETURN_IF_ERROR(CheckDecided(members, shards));
  v1::RouteResponse response;
  response.set_epoch(shards.epoch());
  for (const MemberPlace& place : members.servers()) {
    v1::RouteResponse::Server* const server = response.add_servers();
    server->set_address(place.address);
    server->set_incarnation(place.incarnation);
    server->set_away(!members.Alive(place));
    server->set_local_socket(place.local_socket);
  }
  response.mutable_owners()->Add(shards.owners().begin(), shards.owners().end());
  shards.copies().FillRoute(&response);
  if (shards.HasTerms()) response.mutable_terms()->Add(shards.terms().begin(), shards.terms().end());
  if (shards.HasHandovers()) response.mutable_handovers()->Add(shards.handovers().begin(), shards.handovers().end());
  if (shards.HasLearners()) response.mutable_learners()->Add(shards.learners().begin(), shards.learners().end());
  if (shards.lost().any()) response.mutable_lost()->Add(shards.lost().all().begin(), shards.lost().all().end());
  return response;
}

}  // namespace lodestone::server
