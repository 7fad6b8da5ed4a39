#include "tools/psctl/verbs/events.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "CLI/App.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/base/time_source.h"
#include "nlohmann/json.hpp"
#include "tools/psctl/client/admin_client.h"
#include "tools/psctl/text/exit_code.h"
#include "tools/psctl/text/message_json.h"
#include "tools/psctl/verbs/flags.h"

namespace lodestone::psctl {
namespace {

constexpr char kEvents[] = "events";
constexpr int kFollowPeriodMs = 1000;

Style StyleOf(const std::string& kind) {
  if (kind == "died" || kind == "disk") return Style::kBad;
  if (kind == "refused" || kind == "moved" || kind == "elected") return Style::kWarning;
  return kind == "joined" ? Style::kGood : Style::kPlain;
}

std::string TimeText(uint64_t ms) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromUnixMillis(static_cast<int64_t>(ms)), absl::UTCTimeZone());
}

nlohmann::ordered_json ToJson(const v1::Event& event) {
  nlohmann::ordered_json json = JsonOf(event);
  json["time"] = TimeText(event.time_ms());
  return json;
}

void Print(const std::vector<v1::Event>& events, const EventsOptions& options) {
  const Painter paint(WantsColor(STDOUT_FILENO));
  if (options.json && !options.follow) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const v1::Event& event : events) all.push_back(ToJson(event));
    std::fputs(IndentedJson(all).c_str(), stdout);
  } else {
    for (const v1::Event& event : events) {
      std::fputs((options.json ? JsonLine(ToJson(event)) : EventLine(event, paint) + "\n").c_str(), stdout);
    }
  }
  std::fflush(stdout);
}

// Prints what comes, until nothing has answered for the time of --timeout, or nobody reads.
int Follow(const EventsOptions& options, EventReader* reader) {
  const SteadyTime time;
  int64_t answered_ms = time.NowMs();
  std::string remark = reader->remark();
  while (!NobodyReads(kFollowPeriodMs)) {
    const absl::StatusOr<std::vector<v1::Event>> events = reader->Read(options.timeout_ms);
    if (!events.ok()) {
      if (time.NowMs() - answered_ms >= options.timeout_ms) return Fail(kEvents, events.status());
      continue;
    }
    answered_ms = time.NowMs();
    if (reader->restarted())
      Complain(kEvents, "from here on events come from another coordinator, or the same one after a restart");
    if (reader->remark() != remark && !reader->remark().empty()) Complain(kEvents, reader->remark());
    remark = reader->remark();
    Print(*events, options);
    if (std::ferror(stdout)) break;
  }
  return kExitFailed;
}

}  // namespace

std::string EventLine(const v1::Event& event, const Painter& paint) {
  const std::string kind = Printable(event.kind()), who = Printable(event.who());
  return absl::StrCat(paint(Style::kFaint, TimeText(event.time_ms())), "  ", paint(StyleOf(kind), kind),
                      std::string(kind.size() < 12 ? 12 - kind.size() : 0, ' '), "  ", absl::StrFormat("%-9s", who),
                      "  ", Printable(event.text()));
}

absl::StatusOr<v1::EventsResponse> EventReader::Fetch(int timeout_ms) {
  if (!source_.empty() && remark_.empty()) {
    auto events = FetchEvents(source_, newest_id_, timeout_ms);
    if (events.ok() && events->incarnation() == incarnation_) return events;
  }
  // Which ps serves the coordinator now? A former one reports only its own events.
  LODESTONE_ASSIGN_OR_RETURN(const v1::StatusResponse status, FetchStatus(address_, timeout_ms));
  remark_.clear();
  source_ = status.has_cluster() || status.coordinator().empty() ? address_ : status.coordinator();
  if (!status.has_cluster() && status.coordinator().empty()) {
    remark_ = absl::StrCat("the ps at ", address_, " knows no coordinator yet: these are its own events");
  }
  auto events = FetchEvents(source_, newest_id_, timeout_ms);
  if (events.ok() || source_ == address_) return events;
  remark_ = absl::StrCat("the coordinator does not answer, these are the events of the ps at ", address_,
                         " alone: ", events.status().message());
  source_ = address_;
  return FetchEvents(source_, newest_id_, timeout_ms);
}

absl::StatusOr<std::vector<v1::Event>> EventReader::Read(int timeout_ms) {
  LODESTONE_ASSIGN_OR_RETURN(v1::EventsResponse response, Fetch(timeout_ms));
  restarted_ = incarnation_ != 0 && response.incarnation() != incarnation_;
  if (response.incarnation() != incarnation_ && newest_id_ > 0) {
    newest_id_ = 0;  // Ids of another log: all of this one are new.
    LODESTONE_ASSIGN_OR_RETURN(response, FetchEvents(source_, 0, timeout_ms));
  }
  incarnation_ = response.incarnation();
  std::vector<v1::Event> events(response.events().begin(), response.events().end());
  if (!events.empty()) newest_id_ = events.back().id();
  return events;
}

int RunEvents(const EventsOptions& options) {
  if (const absl::Status address = CheckAddressFlag(options.address); !address.ok()) {
    return FailUsage(kEvents, address.message());
  }
  EventReader reader(options.address);
  absl::StatusOr<std::vector<v1::Event>> events = reader.Read(options.timeout_ms);
  if (!events.ok()) return Fail(kEvents, events.status());
  if (options.last > 0 && events->size() > options.last) {
    events->erase(events->begin(), events->end() - static_cast<ptrdiff_t>(options.last));
  }
  Print(*events, options);
  if (!reader.remark().empty()) Complain(kEvents, reader.remark());
  if (options.follow) return Follow(options, &reader);
  return reader.remark().empty() ? kExitDone : kExitFailed;
}

const Verb kEventsVerb = {
    "events", "Shows what has happened: what joined, left, died; what moved, was checkpointed, refused",
    "  psctl events --follow                                  what has happened, and what happens\n",
    [](CLI::App* command) -> Verb::Run {
      const auto options = std::make_shared<EventsOptions>();
      AddAddress(command, &options->address);
      command->add_flag("--follow,-f", options->follow, "Goes on with what happens, until Ctrl-C");
      command->add_option("--last", options->last, "Begins with so many of the newest (default: all that are kept)")
          ->check(CheckCount)
          ->type_name("N");
      AddJson(command, &options->json, "Prints a JSON array, or with --follow one JSON object a line");
      AddTimeout(command, &options->timeout_ms,
                 "How long to wait for answers; with --follow, how long there may be none");
      return [options] { return RunEvents(*options); };
    }};

}  // namespace lodestone::psctl
