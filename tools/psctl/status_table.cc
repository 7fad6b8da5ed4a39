#include "tools/psctl/status_table.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/psctl/cluster_view.h"

namespace lodestone {
namespace {

using Rows = std::vector<std::vector<std::string>>;

std::string Hex(uint64_t number) { return absl::StrFormat("%x", number); }
std::string Rate(double per_second) { return WithThousands(std::llround(per_second)); }
std::string Seconds(double seconds) { return absl::StrFormat("%.1f s", seconds); }

// "3.1 MiB of 1.0 GiB", or without a limit "3.1 MiB".
std::string Limited(uint64_t bytes, uint64_t bytes_max) {
  return bytes_max == 0 ? WithUnit(bytes) : absl::StrCat(WithUnit(bytes), " of ", WithUnit(bytes_max));
}

bool IsNumber(const std::string& cell) { return !cell.empty() && (absl::ascii_isdigit(cell[0]) || cell == "-"); }

void AppendSection(std::string* text, absl::string_view title, const Rows& rows) {
  if (rows.size() > 1) absl::StrAppend(text, "\n", title, "\n", AlignedTable(rows));
}

std::string ServerText(const v1::ServerStatus& server) {
  std::string text = absl::StrFormat("ps %u at %s, version %s, up %s\n", server.index(), server.address(),
                                     server.version(), Seconds(server.uptime_seconds()));
  absl::StrAppendFormat(&text, "  memory     %s resident, tables %s\n", WithUnit(server.resident_bytes()),
                        Limited(server.table_bytes(), server.table_bytes_max()));
  absl::StrAppendFormat(&text, "  shards     %u of %u\n", server.shards_owned(), server.shards_total());
  absl::StrAppendFormat(&text, "  pushes     %s (%s/s, %s), %s duplicate, %s refused\n", WithThousands(server.pushes()),
                        Rate(server.pushes_per_second()), WithUnit(server.push_bytes()),
                        WithThousands(server.pushes_duplicate()), WithThousands(server.pushes_refused()));
  absl::StrAppendFormat(&text, "  pulls      %s (%s/s, %s)\n", WithThousands(server.pulls()),
                        Rate(server.pulls_per_second()), WithUnit(server.pull_bytes()));
  absl::StrAppendFormat(&text, "  broadcast  %s\n", WithUnit(server.broadcast_bytes()));
  if (!server.last_refusal().empty()) absl::StrAppend(&text, "  refused last: ", server.last_refusal(), "\n");
  return text;
}

std::string StorageText(const v1::StorageStatus& storage) {
  std::string text = absl::StrFormat("  storage    %s, durability %s, log %s", storage.dir(), storage.durability(),
                                     WithUnit(storage.log_bytes()));
  if (storage.log_commits() > 0) {
    absl::StrAppendFormat(&text, ", %s records in %s groups", WithThousands(storage.log_records()),
                          WithThousands(storage.log_commits()));
  }
  text += "\n";
  if (!storage.checkpoint().empty()) {
    absl::StrAppendFormat(&text, "  checkpoint %s, %s ago: %s in %s\n", storage.checkpoint(),
                          Seconds(storage.checkpoint_age_seconds()), WithUnit(storage.checkpoint_bytes()),
                          Seconds(storage.checkpoint_seconds()));
  }
  if (storage.replayed_records() > 0) {
    absl::StrAppendFormat(&text, "  came back  in %s, with %s log records\n", Seconds(storage.recovery_seconds()),
                          WithThousands(storage.replayed_records()));
  }
  if (!storage.log_error().empty()) absl::StrAppend(&text, "  PUSHES ARE REFUSED: ", storage.log_error(), "\n");
  if (!storage.checkpoint_error().empty()) {
    absl::StrAppend(&text, "  the last checkpoint failed: ", storage.checkpoint_error(), "\n");
  }
  return text;
}

std::string ReplicationText(const v1::ReplicationStatus& replication, const v1::ServerStatus& server) {
  const uint32_t in_sync = replication.shards_in_sync(), alone = replication.shards_alone();
  std::string text =
      absl::StrFormat("  replicas   of the %u shards it owns %u in sync", server.shards_owned(), in_sync);
  if (alone > 0) absl::StrAppendFormat(&text, ", %u ALONE", alone);
  absl::StrAppendFormat(&text, "; follows %u", replication.shards_following());
  if (replication.shards_followed() < replication.shards_following()) {
    absl::StrAppendFormat(&text, ", %u of them so far", replication.shards_followed());
  }
  absl::StrAppend(&text, replication.lease_seconds() > 0
                             ? absl::StrCat("; lease ends in ", Seconds(replication.lease_seconds()), "\n")
                             : "; THE LEASE HAS ENDED: what has a follower is not served\n");
  return text;
}

Rows FollowerRows(const v1::ReplicationStatus& replication) {
  Rows rows = {{"follower", "shards", "in sync", "lag records", "lag bytes", "sent"}};
  for (const v1::FollowerStatus& follower : replication.followers()) {
    rows.push_back({absl::StrCat("ps ", follower.server()), WithThousands(follower.shards()),
                    WithThousands(follower.shards_in_sync()), WithThousands(follower.lag_records()),
                    WithUnit(follower.lag_bytes()), WithUnit(follower.bytes())});
  }
  return rows;
}

Rows MemberRows(const google::protobuf::RepeatedPtrField<v1::MemberStatus>& members, bool workers) {
  Rows rows = {{"index", "peer", "state", "last contact"}};
  if (workers) {
    for (const char* name : {"phase", "clock", "samples", "of", "samples/s", "loss", "staleness", "waits for"}) {
      rows[0].push_back(name);
    }
  }
  for (const v1::MemberStatus& member : members) {
    const v1::WorkerProgress& progress = member.progress();
    std::vector<std::string> row = {absl::StrCat(member.index()), member.peer(),
                                    member.left()    ? "left"
                                    : member.alive() ? "alive"
                                                     : "dead",
                                    Seconds(member.last_contact_seconds())};
    if (workers) {
      ClusterView view;
      view.phase = progress.phase();
      row.push_back(PhaseText(view));
      row.push_back(WithThousands(progress.clock()));
      row.push_back(WithThousands(progress.samples()));
      row.push_back(progress.samples_total() == 0 ? "-" : WithThousands(progress.samples_total()));
      row.push_back(Rate(member.samples_per_second()));
      row.push_back(absl::StrFormat("%.4f", progress.loss()));
      row.push_back(absl::StrFormat("%.1f", progress.staleness_pushes()));
      row.push_back(progress.waiting_for());
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

Rows TableRows(const v1::StatusResponse& status) {
  Rows rows = {
      {"table", "shape", "optimizer", "blocks", "rows", "bytes", "updates", "version", "evicted", "not admitted"}};
  for (const v1::TableStatus& table : status.tables()) {
    rows.push_back({table.name(), table.shape(), table.optimizer(), WithThousands(table.blocks()),
                    WithThousands(table.rows()), Limited(table.bytes(), table.bytes_max()),
                    WithThousands(table.updates()), WithThousands(table.version_max()), WithThousands(table.evicted()),
                    WithThousands(table.not_admitted())});
  }
  return rows;
}

Rows ExecutorRows(const v1::StatusResponse& status) {
  Rows rows = {{"executor", "queue", "longest", "executed"}};
  for (int i = 0; i < status.executors_size(); ++i) {
    const v1::ExecutorStatus& executor = status.executors(i);
    rows.push_back({absl::StrCat(i), WithThousands(executor.queue_length()), WithThousands(executor.queue_length_max()),
                    WithThousands(executor.executed())});
  }
  return rows;
}

Rows SessionRows(const v1::StatusResponse& status) {
  Rows rows = {{"worker incarnation", "clock", "last contact", "pushes", "sequence", "refused"}};
  for (const v1::SessionStatus& session : status.sessions()) {
    rows.push_back({Hex(session.worker_incarnation()), WithThousands(session.clock()),
                    Seconds(session.last_contact_seconds()), WithThousands(session.pushes()),
                    WithThousands(session.sequence()), WithThousands(session.refused())});
  }
  return rows;
}

Rows SubscriberRows(const v1::StatusResponse& status) {
  Rows rows = {{"worker incarnation", "peer", "deltas", "skipped", "bytes"}};
  for (const v1::SubscriberStatus& subscriber : status.subscribers()) {
    rows.push_back({subscriber.worker_incarnation() == 0 ? "observer" : Hex(subscriber.worker_incarnation()),
                    subscriber.peer(), WithThousands(subscriber.deltas()), WithThousands(subscriber.skipped()),
                    WithUnit(subscriber.bytes())});
  }
  return rows;
}

Rows WaitRows(const v1::StatusResponse& status) {
  Rows rows = {{"who", "waits for", "since"}};
  for (const v1::WaitStatus& wait : status.waits()) rows.push_back({wait.who(), wait.what(), Seconds(wait.seconds())});
  return rows;
}

}  // namespace

std::string AlignedTable(const Rows& rows) {
  std::vector<size_t> widths;
  std::vector<bool> numeric;
  for (size_t r = 0; r < rows.size(); ++r) {
    widths.resize(std::max(widths.size(), rows[r].size()), 0);
    numeric.resize(widths.size(), true);
    for (size_t c = 0; c < rows[r].size(); ++c) {
      widths[c] = std::max(widths[c], rows[r][c].size());
      if (r > 0 && !IsNumber(rows[r][c])) numeric[c] = false;
    }
  }
  std::string text;
  for (const std::vector<std::string>& row : rows) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - row[c].size(), ' ');
      absl::StrAppend(&line, "  ", numeric[c] ? padding : "", row[c], numeric[c] ? "" : padding);
    }
    absl::StripTrailingAsciiWhitespace(&line);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

std::string WithUnit(uint64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  double value = bytes;
  const char* unit = "";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB", "PiB"}) {
    if (value < 1024) break;
    value /= 1024;
    unit = next;
  }
  return absl::StrFormat("%.1f %s", value, unit);
}

std::string StatusText(const v1::StatusResponse& status) {
  std::string text = ServerText(status.server());
  if (status.has_storage()) text += StorageText(status.storage());
  if (status.has_replication()) text += ReplicationText(status.replication(), status.server());
  if (status.has_cluster()) {
    const v1::ClusterStatus& cluster = status.cluster();
    absl::StrAppendFormat(&text, "\ncluster %s: %d of %u servers have joined, shard map epoch %u\n", cluster.name(),
                          cluster.servers_size(), cluster.servers_expected(), cluster.route_epoch());
    if (cluster.replicas() > 1) {
      absl::StrAppendFormat(&text, "%u replicas, %u of %u shards in sync\n", cluster.replicas(),
                            cluster.shards_in_sync(), status.server().shards_total());
    }
    AppendSection(&text, "servers", MemberRows(cluster.servers(), /*workers=*/false));
    AppendSection(&text, "workers", MemberRows(cluster.workers(), /*workers=*/true));
  }
  AppendSection(&text, "followers", FollowerRows(status.replication()));
  AppendSection(&text, "tables", TableRows(status));
  AppendSection(&text, "executors", ExecutorRows(status));
  AppendSection(&text, "sessions", SessionRows(status));
  AppendSection(&text, "subscribers", SubscriberRows(status));
  AppendSection(&text, "waits", WaitRows(status));
  return text;
}

}  // namespace lodestone
