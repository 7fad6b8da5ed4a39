#include "tools/psctl/verbs/status_table.h"

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/telemetry/figures.h"
#include "tools/psctl/client/admin_client.h"
#include "tools/psctl/local/training_progress.h"

namespace lodestone::psctl {
namespace {

std::string Hex(uint64_t number) { return absl::StrFormat("%x", number); }

// "3.1 MiB of 1.0 GiB", or without a limit "3.1 MiB".
std::string Limited(uint64_t bytes, uint64_t bytes_max) {
  return bytes_max == 0 ? WithUnit(bytes) : absl::StrCat(WithUnit(bytes), " of ", WithUnit(bytes_max));
}

// Alive, left or dead.
Cell StateOf(const v1::MemberStatus& member) {
  if (member.left()) return {"left", Style::kFaint};
  return member.alive() ? Cell("alive", Style::kGood) : Cell("dead", Style::kBad);
}

Cell Counted(uint64_t number, Style style) { return {WithThousands(number), number > 0 ? style : Style::kPlain}; }

// "  label      what it is".
std::string Line(absl::string_view label, absl::string_view what) {
  return absl::StrFormat("  %-10s %s\n", label, Printable(what));
}
// What is wrong.
std::string BadLine(const Painter& paint, absl::string_view what) {
  return absl::StrCat("  ", paint(Style::kBad, Printable(what)), "\n");
}

std::string ServerText(const v1::ServerStatus& server, const Painter& paint) {
  std::string text = Printable(absl::StrFormat("ps %u at %s, version %s, up %s", server.index(), server.address(),
                                               server.version(), SecondsText(server.uptime_seconds())));
  text = absl::StrCat(paint(Style::kHeading, text), "\n");
  text += Line("memory", absl::StrFormat("%s resident, tables %s", WithUnit(server.resident_bytes()),
                                         Limited(server.table_bytes(), server.table_bytes_max())));
  text += Line("shards", absl::StrFormat("%u of %u", server.shards_owned(), server.shards_total()));
  text +=
      Line("pushes", absl::StrFormat("%s (%s/s, %s), %s duplicate, %s refused", WithThousands(server.pushes()),
                                     RateText(server.pushes_per_second()), WithUnit(server.push_bytes()),
                                     WithThousands(server.pushes_duplicate()), WithThousands(server.pushes_refused())));
  text += Line("pulls", absl::StrFormat("%s (%s/s, %s)", WithThousands(server.pulls()),
                                        RateText(server.pulls_per_second()), WithUnit(server.pull_bytes())));
  text += Line("broadcast", WithUnit(server.broadcast_bytes()));
  if (!server.http().empty()) text += Line("http", server.http());
  if (!server.last_refusal().empty()) {
    text += absl::StrCat("  ", paint(Style::kWarning, Printable("refused last: " + server.last_refusal())), "\n");
  }
  if (!server.security_warning().empty()) text += BadLine(paint, "WARNING: " + server.security_warning());
  return text;
}

std::string StorageText(const v1::StorageStatus& storage, const Painter& paint) {
  std::string log =
      absl::StrFormat("%s, durability %s, log %s", storage.dir(), storage.durability(), WithUnit(storage.log_bytes()));
  if (storage.log_commits() > 0) {
    absl::StrAppendFormat(&log, ", %s records in %s groups", WithThousands(storage.log_records()),
                          WithThousands(storage.log_commits()));
  }
  std::string text = Line("storage", log);
  if (!storage.checkpoint().empty()) {
    text += Line(
        "checkpoint",
        absl::StrFormat("%s, %s ago: %s in %s", storage.checkpoint(), SecondsText(storage.checkpoint_age_seconds()),
                        WithUnit(storage.checkpoint_bytes()), SecondsText(storage.checkpoint_seconds())));
  }
  if (storage.scrub_passes() > 0) {
    text += Line("scrubbed", absl::StrFormat("checkpoints read again %s times since the start, %s in the newest pass",
                                             WithThousands(storage.scrub_passes()), WithUnit(storage.scrub_bytes())));
  }
  if (storage.replayed_records() > 0) {
    text += Line("came back", absl::StrFormat("in %s, with %s log records", SecondsText(storage.recovery_seconds()),
                                              WithThousands(storage.replayed_records())));
  }
  if (!storage.log_error().empty()) text += BadLine(paint, "PUSHES ARE REFUSED: " + storage.log_error());
  if (!storage.checkpoint_error().empty()) {
    text += BadLine(paint, "the last checkpoint failed: " + storage.checkpoint_error());
  }
  for (const std::string& damage : storage.checkpoint_damage()) {
    text += BadLine(paint, "A CHECKPOINT IS DAMAGED: " + damage);
  }
  return text;
}

std::string ReplicationText(const v1::ReplicationStatus& replication, const v1::ServerStatus& server,
                            const Painter& paint) {
  const uint32_t in_sync = replication.shards_in_sync(), alone = replication.shards_alone();
  std::string text =
      absl::StrFormat("  %-10s of the %u shards it owns %u in sync", "replicas", server.shards_owned(), in_sync);
  if (alone > 0) absl::StrAppend(&text, ", ", paint(Style::kBad, absl::StrCat(alone, " ALONE")));
  absl::StrAppendFormat(&text, "; follows %u", replication.shards_following());
  if (replication.shards_followed() < replication.shards_following()) {
    absl::StrAppendFormat(&text, ", %u of them so far", replication.shards_followed());
  }
  absl::StrAppend(&text, "; ",
                  replication.lease_seconds() > 0
                      ? absl::StrCat("lease ends in ", SecondsText(replication.lease_seconds()))
                      : paint(Style::kBad, "THE LEASE HAS ENDED: what has a follower is not served"),
                  "\n");
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
                    SecondsText(session.last_contact_seconds()), WithThousands(session.pushes()),
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

Rows IdentityRows(const v1::StatusResponse& status) {
  Rows rows = {{"identity", "role", "calls", "denied", "throttled", "pushed"}};
  for (const v1::IdentityStatus& identity : status.identities()) {
    rows.push_back({identity.name(), identity.role(), WithThousands(identity.calls()),
                    Counted(identity.denied(), Style::kWarning), Counted(identity.throttled(), Style::kWarning),
                    WithUnit(identity.push_bytes())});
  }
  return rows;
}

Rows WaitRows(const v1::StatusResponse& status) {
  Rows rows = {{"who", "waits for", "since"}};
  for (const v1::WaitStatus& wait : status.waits())
    rows.push_back({wait.who(), wait.what(), SecondsText(wait.seconds())});
  return rows;
}

Rows HotKeyRows(const v1::StatusResponse& status) {
  Rows rows = {{"hot key", "table", "shard", "per second", "of its shard's keys"}};
  for (const v1::HotKey& key : status.hot_keys()) {
    rows.push_back({absl::StrCat(key.key()), key.table(), absl::StrCat(key.shard()), RateText(key.per_second()),
                    absl::StrFormat("%.0f %%", 100 * key.share())});
  }
  return rows;
}

// What moves, what is drained, and what room there is, in words.
std::vector<std::string> MoveLines(const v1::ClusterStatus& cluster) {
  std::vector<std::string> lines;
  for (const v1::MemberStatus& server : cluster.servers()) {
    if (!server.draining()) continue;
    const std::string follows =
        server.shards_following() == 0 ? "" : absl::StrCat(", and follows ", server.shards_following());
    lines.push_back(
        absl::StrFormat("ps %u is drained: it owns %u shards%s", server.index(), server.shards_owned(), follows));
  }
  if (cluster.places_kept() > 0) {
    lines.push_back(absl::StrCat(cluster.places_kept(), cluster.places_kept() == 1 ? " place is" : " places are",
                                 " kept for more ps: psctl add INDEX, and start it"));
  }
  // All, and those being copied; of followers or of owners, from and to.
  std::map<std::tuple<bool, uint32_t, uint32_t>, std::pair<size_t, size_t>> moves;
  std::string waiting_for;
  for (const v1::ShardMove& move : cluster.moves()) {
    auto& [all, copying] = moves[{move.of_follower(), move.from(), move.to()}];
    ++all;
    copying += move.copying();
    if (waiting_for.empty()) waiting_for = move.waiting_for();
  }
  for (const auto& [what, count] : moves) {
    const auto& [of_follower, from, to] = what;
    lines.push_back(absl::StrFormat("moves: %u shards%s from ps %u to ps %u, %u of them being copied", count.first,
                                    of_follower ? " that it follows" : "", from, to, count.second));
  }
  if (!waiting_for.empty()) lines.push_back(absl::StrCat("moves wait for ", waiting_for));
  return lines;
}

}  // namespace

Rows ServerRows(const v1::ClusterStatus& cluster) {
  Rows rows = {{"index", "peer", "state", "last contact", "shards", "follows", "pushes/s", "pulls/s", "refused", "rows",
                "tables", "resident", "lag"}};
  const bool zones = absl::c_any_of(cluster.servers(), [](const v1::MemberStatus& one) { return !one.zone().empty(); });
  if (zones) rows[0].push_back("zone");
  for (const v1::MemberStatus& member : cluster.servers()) {
    const v1::ServerProgress& server = member.server();
    rows.push_back({absl::StrCat(member.index()), member.peer(), StateOf(member),
                    SecondsText(member.last_contact_seconds()), absl::StrCat(member.shards_owned()),
                    absl::StrCat(member.shards_following()), RateText(server.pushes_per_second()),
                    RateText(server.pulls_per_second()), Counted(server.pushes_refused(), Style::kWarning),
                    WithThousands(server.rows()), WithUnit(server.table_bytes()), WithUnit(server.resident_bytes()),
                    WithThousands(server.lag_records())});
    if (zones) rows.back().push_back(member.zone());
  }
  return rows;
}

Rows WorkerRows(const v1::ClusterStatus& cluster, const PushesByWorker* pushes) {
  // Where all compute on the CPU the column would say nothing.
  const bool devices = absl::c_any_of(
      cluster.workers(), [](const v1::MemberStatus& member) { return OnDevice(member.progress().device()); });
  Rows rows = {
      {"index", "peer", "state", "last contact", "phase", "clock", "samples", "of", "samples/s", "loss", "delay"}};
  if (pushes != nullptr) rows[0].insert(rows[0].end(), {"pushes", "refused"});
  if (devices) rows[0].push_back("device");
  rows[0].push_back("waits for");
  for (const v1::MemberStatus& member : cluster.workers()) {
    const v1::WorkerProgress& progress = member.progress();
    ClusterView view;
    view.phase = progress.phase();
    std::vector<Cell>& row = rows.emplace_back();
    row = {absl::StrCat(member.index()),
           member.peer(),
           StateOf(member),
           SecondsText(member.last_contact_seconds()),
           PhaseText(view),
           WithThousands(progress.clock()),
           WithThousands(progress.samples()),
           progress.samples_total() == 0 ? std::string("-") : WithThousands(progress.samples_total()),
           RateText(member.samples_per_second()),
           absl::StrFormat("%.4f", progress.loss()),
           absl::StrFormat("%.1f", DelayOf(progress))};
    if (pushes != nullptr) {
      const auto found = pushes->find(member.incarnation());
      const WorkerPushes of_it = found == pushes->end() ? WorkerPushes() : found->second;
      row.insert(row.end(), {WithThousands(of_it.applied), Counted(of_it.refused, Style::kWarning)});
    }
    if (devices) row.push_back(progress.device());
    row.push_back({progress.waiting_for(), Style::kWarning});
  }
  return rows;
}

Rows TableRows(const v1::StatusResponse& status) {
  Rows rows = {{"table", "shape", "optimizer"}};
  std::vector<Figure> figures = FiguresOf(*v1::TableStatus::descriptor());
  std::erase_if(figures, [](const Figure& figure) { return figure.options->label().empty(); });
  for (const Figure& figure : figures) rows[0].push_back(figure.options->label());
  for (const v1::TableStatus& table : status.tables()) {
    std::vector<Cell>& row = rows.emplace_back();
    row = {table.name(), table.shape(), table.optimizer()};
    for (const Figure& figure : figures) {
      const bool bytes = figure.options->unit() == v1::Figure::BYTES;
      row.push_back(bytes ? Limited(figure.Of(table), figure.LimitOf(table)) : WithThousands(figure.Of(table)));
    }
  }
  return rows;
}

std::string StatusText(const v1::StatusResponse& status, const Painter& paint) {
  std::string text = ServerText(status.server(), paint);
  if (status.has_storage()) text += StorageText(status.storage(), paint);
  if (status.has_replication()) text += ReplicationText(status.replication(), status.server(), paint);
  if (status.has_cluster()) {
    const v1::ClusterStatus& cluster = status.cluster();
    const std::string heading =
        absl::StrFormat("cluster %s: %d of %u servers have joined, shard map epoch %u", cluster.name(),
                        ServersIn(cluster), cluster.servers_expected(), cluster.route_epoch());
    absl::StrAppend(&text, "\n", paint(Style::kHeading, Printable(heading)), "\n");
    if (cluster.replicas() > 1) {
      absl::StrAppendFormat(&text, "%u replicas, %u of %u shards in sync\n", cluster.replicas(),
                            cluster.shards_in_sync(), status.server().shards_total());
    }
    for (const std::string& line : cluster.unserved()) {
      absl::StrAppend(&text, paint(Style::kBad, Printable(absl::StrCat("NOT SERVED: ", line))), "\n");
    }
    for (const std::string& line : cluster.one_zone()) {
      absl::StrAppend(&text, paint(Style::kWarning, Printable(line)), "\n");
    }
    if (!cluster.rebalance().empty()) {
      absl::StrAppend(&text, Printable(absl::StrCat("rebalance: auto, ", cluster.rebalance())), "\n");
    }
    for (const std::string& line : MoveLines(cluster)) absl::StrAppend(&text, Printable(line), "\n");
    for (const v1::SlowShard& slow : cluster.slow_shards()) {
      absl::StrAppend(&text, paint(Style::kWarning, Printable(absl::StrCat("slow: ", slow.text()))), "\n");
    }
    for (const v1::HotShard& hot : cluster.hot_shards()) {
      absl::StrAppend(&text, paint(Style::kWarning, Printable(absl::StrCat("hot: ", hot.text()))), "\n");
    }
    if (const std::string validations = ValidationsText(cluster.validations()); !validations.empty()) {
      absl::StrAppend(&text, Printable(absl::StrCat("validations: ", validations)), "\n");
    }
    if (const std::string ranges = RangesText(cluster); !ranges.empty()) {
      absl::StrAppend(&text, Printable(absl::StrCat("samples: ", ranges)), "\n");
    }
    AppendSection(&text, "servers", ServerRows(cluster), paint);
    AppendSection(&text, "workers", WorkerRows(cluster), paint);
  }
  AppendSection(&text, "followers", FollowerRows(status.replication()), paint);
  AppendSection(&text, "tables", TableRows(status), paint);
  AppendSection(&text, "hot keys", HotKeyRows(status), paint);
  AppendSection(&text, "executors", ExecutorRows(status), paint);
  AppendSection(&text, "sessions", SessionRows(status), paint);
  AppendSection(&text, "subscribers", SubscriberRows(status), paint);
  AppendSection(&text, "identities", IdentityRows(status), paint);
  AppendSection(&text, "waits", WaitRows(status), paint);
  return text;
}

}  // namespace lodestone::psctl
