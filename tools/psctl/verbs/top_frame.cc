#include "tools/psctl/verbs/top_frame.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "tools/psctl/client/admin_client.h"
#include "tools/psctl/local/training_progress.h"
#include "tools/psctl/text/table.h"
#include "tools/psctl/verbs/events.h"
#include "tools/psctl/verbs/listing.h"
#include "tools/psctl/verbs/status_table.h"

namespace lodestone::psctl {
namespace {

constexpr size_t kEventsShown = 10;  // Where there is no end of lines.
constexpr size_t kRowsLeast = 2;     // Of each section, before others get more.

// A title with lines below it.
struct Section {
  std::string title;
  std::string heading;  // Of the columns; empty: there is none.
  std::vector<std::string> rows;
  bool newest_last = false;  // The last rows are those to keep.
  size_t shown = 0;          // How many.

  // Beside the rows: a blank line, the title, the heading.
  size_t Above() const { return rows.empty() ? 0 : heading.empty() ? 2 : 3; }
};

Section MakeSection(std::string title, const Rows& rows, const Painter& paint) {
  Section section;
  section.title = std::move(title);
  std::vector<std::string> lines = AlignedLines(rows, paint);
  section.heading = std::move(lines.front());
  section.rows.assign(std::make_move_iterator(lines.begin() + 1), std::make_move_iterator(lines.end()));
  return section;
}

std::vector<std::string> Headline(const TopView& view, const Painter& paint) {
  const ClusterReport& report = view.report;
  const v1::ClusterStatus& cluster = report.cluster;
  const std::string time = absl::FormatTime("%H:%M:%SZ", absl::FromUnixMillis(view.time_ms), absl::UTCTimeZone());
  std::vector<std::string> lines;
  if (!report.remark.empty()) {
    lines.push_back(absl::StrCat(paint(Style::kHeading, "a ps without its coordinator"), "  ", time));
    lines.push_back(paint(Style::kBad, Printable(report.remark)));
  } else {
    std::string text = paint(Style::kHeading, Printable(absl::StrCat("cluster ", cluster.name())));
    absl::StrAppendFormat(&text, "  %d of %u servers, %d workers", ServersIn(cluster), cluster.servers_expected(),
                          cluster.workers_size());
    if (cluster.replicas() > 1) {
      absl::StrAppendFormat(&text, ", %u replicas, %u shards in sync", cluster.replicas(), cluster.shards_in_sync());
    }
    absl::StrAppend(&text, "  ", time);
    lines.push_back(std::move(text));
    v1::StatusResponse status;
    *status.mutable_cluster() = cluster;
    double samples_per_second = 0;
    for (const v1::MemberStatus& worker : cluster.workers()) samples_per_second += worker.samples_per_second();
    if (!cluster.workers().empty()) {
      lines.push_back(Printable(ProgressLine(ViewOf(status, cluster.workers_size()), samples_per_second)));
    }
  }
  if (!view.trouble.empty()) lines.push_back(paint(Style::kBad, Printable(view.trouble)));
  for (const ServerReport& server : report.servers) {
    if (server.failed()) {
      lines.push_back(paint(Style::kBad, Printable(absl::StrCat("ps ", server.index, ": ",
                                                                std::string(server.status.status().message())))));
    } else if (server.status.ok() && !server.status->server().security_warning().empty()) {
      lines.push_back(paint(Style::kBad, Printable(absl::StrCat("WARNING: ps ", server.index, ": ",
                                                                server.status->server().security_warning()))));
    }
  }
  return lines;
}

std::vector<Section> SectionsOf(const TopView& view, const Painter& paint) {
  const ClusterReport& report = view.report;
  const PushesByWorker pushes = PushesOf(report);
  std::vector<Section> sections;
  sections.push_back(MakeSection("servers", ServerRows(report.cluster), paint));
  sections.push_back(MakeSection("workers", WorkerRows(report.cluster, &pushes), paint));
  sections.push_back(MakeSection("tables", TableRows(TablesOf(report)), paint));
  sections.push_back(MakeSection("waits", WaitRows(WaitsOf(report)), paint));
  Section events;
  events.title = "events";
  events.newest_last = true;
  for (const v1::Event& event : view.events) events.rows.push_back("  " + EventLine(event, paint));
  sections.push_back(std::move(events));
  return sections;
}

// How many rows of each section fit into `lines`: a few of each, and the rest in turns.
void Fit(size_t lines, std::vector<Section>* sections) {
  size_t used = 0;
  const auto wants = [](const Section& section) { return section.shown < section.rows.size(); };
  for (Section& section : *sections) {
    section.shown = std::min(kRowsLeast, section.rows.size());
    used += section.Above() + section.shown;
  }
  for (bool more = true; more;) {
    more = false;
    for (Section& section : *sections) {
      if (used >= lines || !wants(section)) continue;
      ++section.shown;
      ++used;
      more = true;
    }
  }
}

void Append(const Section& section, const Painter& paint, std::vector<std::string>* lines) {
  if (section.rows.empty()) return;
  const size_t all = section.rows.size();
  lines->push_back("");
  lines->push_back(paint(Style::kHeading, section.title));
  if (!section.heading.empty()) lines->push_back(section.heading);
  if (section.newest_last) {
    lines->insert(lines->end(), section.rows.end() - static_cast<ptrdiff_t>(section.shown), section.rows.end());
    return;
  }
  // The last line that fits counts those that do not.
  const bool cut = section.shown < all;
  const size_t whole = cut ? section.shown - 1 : all;
  lines->insert(lines->end(), section.rows.begin(), section.rows.begin() + static_cast<ptrdiff_t>(whole));
  if (cut) lines->push_back(paint(Style::kFaint, absl::StrCat("  and ", all - whole, " more")));
}

}  // namespace

std::vector<std::string> TopFrame(const TopView& view, const FrameSize& size, const Painter& paint) {
  std::vector<std::string> lines = Headline(view, paint);
  std::vector<Section> sections = SectionsOf(view, paint);
  std::vector<std::string>& events = sections.back().rows;
  if (size.lines == SIZE_MAX && events.size() > kEventsShown) {
    events.erase(events.begin(), events.end() - static_cast<ptrdiff_t>(kEventsShown));
  }
  Fit(size.lines - std::min(size.lines, lines.size()), &sections);
  for (const Section& section : sections) Append(section, paint, &lines);
  if (lines.size() > size.lines) lines.resize(size.lines);
  for (std::string& line : lines) line = CutToColumns(line, size.columns);
  return lines;
}

}  // namespace lodestone::psctl
