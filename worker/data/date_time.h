// Dates and times of data files, and the features that are made of them.
//
// Thread safety: plain values, and pure functions.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "proto/config.pb.h"
#include "proto/model.pb.h"

namespace lodestone::worker {

// Parses a date or time into seconds since 1970-01-01 00:00 UTC; false if it is none, or not within the years 0 to
// 5138.
bool ParseTime(absl::string_view text, v1::DateTimeColumn::Format format, double* seconds);
// Whether ParseTime would take a time of so many seconds.
bool IsTime(double seconds);
// As ISO 8601, in whole seconds. REQUIRES: ParseTime takes them.
std::string TimeText(double seconds);
// What is wrong with a text that ParseTime does not take.
std::string NoTime(absl::string_view text, absl::string_view column);

// A part of a time.
struct TimeRule {
  enum class Part {
    kNone,  // It is no time.
    kHour,
    kWeekday,
    kAgeDays,
  };
  Part part = Part::kNone;
  v1::DateTimeColumn::Format format = v1::DateTimeColumn::AUTO;
  double age_at = 0;  // What ages are counted to.

  bool is_set() const { return part != Part::kNone; }
  // Of seconds, as ParseTime gives them; NaN of NaN.
  double Of(double seconds) const;
  // As descriptions have it. REQUIRES: is_set().
  v1::DataDescription::TimePart Describe() const;
  bool operator==(const TimeRule&) const = default;
};

// Of a description; a rule that is not set if it has no such part.
TimeRule TimeRuleOf(const v1::DataDescription::TimePart& described);
// hour, weekday or age_days; empty: none.
std::string PartName(TimeRule::Part part);
// The part's feature in a column's settings.
v1::DateTimeColumn::Feature FeatureOf(const v1::DateTimeColumn& column, TimeRule::Part part);
void SetFeature(TimeRule::Part part, v1::DateTimeColumn::Feature feature, v1::DateTimeColumn* column);

inline constexpr TimeRule::Part kTimeParts[] = {TimeRule::Part::kHour, TimeRule::Part::kWeekday,
                                                TimeRule::Part::kAgeDays};

}  // namespace lodestone::worker
