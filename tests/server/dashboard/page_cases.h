// Clusters for the page to show, made up: what a ps would answer. With a seed they are always the same.
#pragma once

#include <cstdint>
#include <string>

#include "proto/admin.pb.h"

namespace lodestone::server {

// All that the page asks for.
struct PageCase {
  v1::StatusResponse status;
  v1::EventsResponse events;
  v1::HistoryResponse history;
};

// The names of all: "training", "empty", "finished", "big", "trouble", "other", "names".
inline constexpr const char* kPageCases[] = {"training", "empty", "finished", "big", "trouble", "other", "names"};

// "training": two ps and two workers, in the middle of it. "empty": one of two ps has joined, and nothing else is
// there. "finished": the end of "training". "big": 100 ps, 500 workers, 200 tables, replicas. "trouble": nearly all
// that can need attention does. "other": a ps that does not serve the coordinator. "names": all that others name holds
// markup and the like. Events and history end at `now_ms`, in milliseconds since 1970.
PageCase MakePageCase(const std::string& name, uint64_t now_ms);

// What stands in the names of "names".
inline constexpr char kHostileName[] =
    "<img src=x onerror=\"window.hacked=1\"></td><script>window.hacked=1</script>&amp;";

}  // namespace lodestone::server
