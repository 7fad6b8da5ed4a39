#include "common/base/planted_defect.h"

#ifdef LODESTONE_PLANTED

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <string_view>

namespace lodestone {
namespace {

// In the order of the enum.
constexpr std::string_view kDefectNames[] = {"duplicate_filter_off",
                                             "stale_owner_answers",
                                             "mark_not_logged",
                                             "lagging_follower_promoted",
                                             "torn_record_accepted",
                                             "lease_check_skipped",
                                             "broadcast_skips_version",
                                             "ack_before_log",
                                             "window_forgotten_too_soon",
                                             "rollback_keeps_rows",
                                             "learner_not_awaited",
                                             "lineage_kept",
                                             "lineage_stays"};

std::optional<Defect> DefectOfProcess() {
  const char* const name = std::getenv("LODESTONE_PLANTED_DEFECT");
  if (name == nullptr || std::string_view(name).empty()) return std::nullopt;
  const auto* const found = std::find(std::begin(kDefectNames), std::end(kDefectNames), name);
  if (found == std::end(kDefectNames)) {
    std::fprintf(stderr, "LODESTONE_PLANTED_DEFECT: there is no defect `%s`\n", name);
    std::abort();
  }
  return static_cast<Defect>(found - std::begin(kDefectNames));
}

}  // namespace

bool Planted(Defect defect) {
  static const std::optional<Defect> planted = DefectOfProcess();
  return planted == defect;
}

}  // namespace lodestone

#endif
