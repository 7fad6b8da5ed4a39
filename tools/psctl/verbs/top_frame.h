// One frame of `psctl top`: the state of a cluster, as lines that fit a terminal.
//
// Thread safety: pure functions and plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/admin.pb.h"
#include "tools/psctl/client/cluster_report.h"
#include "tools/psctl/text/screen.h"
#include "tools/psctl/text/style.h"

namespace lodestone::psctl {

struct TopView {
  ClusterReport report;
  std::vector<v1::Event> events;  // Oldest first.
  int64_t time_ms = 0;            // When it was so, since 1970.
  std::string trouble;            // Why it is not newer; empty: it is new.
};

// At most size.lines lines of at most size.columns columns. What does not fit is left out, and counted where it would
// stand; of events the oldest go first.
std::vector<std::string> TopFrame(const TopView& view, const FrameSize& size, const Painter& paint = Painter());

}  // namespace lodestone::psctl
