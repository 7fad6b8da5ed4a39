#include "worker/data/date_time.h"

#include <chrono>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/data/line_parser.h"
#include "worker/data/number.h"

namespace lodestone::worker {
namespace {

constexpr double kDaySeconds = 86400;
constexpr double kSecondsMax = 1e11;  // In the year 5138: what is more is in milliseconds.
constexpr double kSecondsMin = -6.3e10;

// The text that is still to be read.
class TextScan {
 public:
  explicit TextScan(absl::string_view text) : text_(text) {}

  bool done() const { return text_.empty(); }
  bool Skip(char c) {
    if (text_.empty() || text_[0] != c) return false;
    text_.remove_prefix(1);
    return true;
  }
  // So many digits.
  bool Digits(size_t count, int* number) {
    *number = 0;
    if (text_.size() < count) return false;
    for (size_t i = 0; i < count; ++i) {
      if (!absl::ascii_isdigit(static_cast<unsigned char>(text_[i]))) return false;
      *number = 10 * *number + (text_[i] - '0');
    }
    text_.remove_prefix(count);
    return true;
  }
  // Any number of digits behind a point.
  bool Fraction(double* fraction) {
    double unit = 0.1;
    const size_t before = text_.size();
    for (; !text_.empty() && absl::ascii_isdigit(static_cast<unsigned char>(text_[0])); text_.remove_prefix(1)) {
      *fraction += unit * (text_[0] - '0');
      unit /= 10;
    }
    return text_.size() < before;
  }

 private:
  absl::string_view text_;
};

// HH:MM, then perhaps :SS and a fraction.
bool ParseClock(TextScan* reader, double* seconds) {
  int hour = 0, minute = 0, second = 0;
  if (!reader->Digits(2, &hour) || !reader->Skip(':') || !reader->Digits(2, &minute)) return false;
  double fraction = 0;
  if (reader->Skip(':')) {
    if (!reader->Digits(2, &second)) return false;
    if (reader->Skip('.') && !reader->Fraction(&fraction)) return false;
  }
  *seconds += 3600.0 * hour + 60.0 * minute + second + fraction;
  return hour < 24 && minute < 60 && second <= 60;
}

// Nothing, Z, +HH, +HHMM or +HH:MM.
bool ParseOffset(TextScan* reader, double* seconds) {
  if (reader->done() || reader->Skip('Z')) return true;
  const bool ahead = reader->Skip('+');
  int hours = 0, minutes = 0;
  if ((!ahead && !reader->Skip('-')) || !reader->Digits(2, &hours)) return false;
  if ((reader->Skip(':') || !reader->done()) && !reader->Digits(2, &minutes)) return false;
  *seconds -= (ahead ? 60.0 : -60.0) * (60 * hours + minutes);
  return hours < 24 && minutes < 60;
}

bool ParseIso(absl::string_view text, double* seconds) {
  TextScan reader(text);
  int year = 0, month = 0, day = 0;
  if (!reader.Digits(4, &year) || !reader.Skip('-') || !reader.Digits(2, &month) || !reader.Skip('-') ||
      !reader.Digits(2, &day)) {
    return false;
  }
  const std::chrono::year_month_day date(std::chrono::year(year), std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day)));
  if (!date.ok()) return false;
  *seconds = kDaySeconds * static_cast<double>(std::chrono::sys_days(date).time_since_epoch().count());
  if (reader.done()) return true;
  if (!reader.Skip('T') && !reader.Skip(' ')) return false;
  return ParseClock(&reader, seconds) && ParseOffset(&reader, seconds) && reader.done();
}

}  // namespace

bool ParseTime(absl::string_view text, v1::DateTimeColumn::Format format, double* seconds) {
  const bool iso = format == v1::DateTimeColumn::ISO8601 ||
                   (format == v1::DateTimeColumn::AUTO && text.find_first_of("-T", 1) != absl::string_view::npos);
  if (!(iso ? ParseIso(text, seconds) : ParseNumber(text, seconds))) return false;
  return IsTime(*seconds);
}

bool IsTime(double seconds) { return seconds >= kSecondsMin && seconds < kSecondsMax; }

std::string TimeText(double seconds) {
  const double days = std::floor(seconds / kDaySeconds);
  const std::chrono::year_month_day date(std::chrono::sys_days(std::chrono::days(static_cast<int>(days))));
  const int second = static_cast<int>(seconds - days * kDaySeconds);
  return absl::StrFormat("%04d-%02u-%02uT%02d:%02d:%02dZ", static_cast<int>(date.year()),
                         static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()), second / 3600,
                         second / 60 % 60, second % 60);
}

std::string NoTime(absl::string_view text, absl::string_view column) {
  return absl::StrCat(
      Quoted(text), " in ", column,
      " is no date or time as csv.datetime takes them: ISO 8601 (2024-03-01T12:34:56Z) or seconds since "
      "1970-01-01, before the year 5138");
}

double TimeRule::Of(double seconds) const {
  const double days = std::floor(seconds / kDaySeconds);
  switch (part) {
    case Part::kHour:
      return std::floor((seconds - days * kDaySeconds) / 3600);
    case Part::kWeekday:
      return days + 3 - 7 * std::floor((days + 3) / 7);  // 1970-01-01 was a Thursday.
    case Part::kAgeDays:
      return (age_at - seconds) / kDaySeconds;
    case Part::kNone:
      break;
  }
  return seconds;
}

std::string PartName(TimeRule::Part part) {
  switch (part) {
    case TimeRule::Part::kHour:
      return "hour";
    case TimeRule::Part::kWeekday:
      return "weekday";
    case TimeRule::Part::kAgeDays:
      return "age_days";
    case TimeRule::Part::kNone:
      break;
  }
  return "";
}

v1::DataDescription::TimePart TimeRule::Describe() const {
  v1::DataDescription::TimePart described;
  described.set_part(PartName(part));
  described.set_format(absl::AsciiStrToLower(v1::DateTimeColumn::Format_Name(format)));
  if (part == Part::kAgeDays) described.set_age_at(age_at);
  return described;
}

TimeRule TimeRuleOf(const v1::DataDescription::TimePart& described) {
  TimeRule rule;
  for (const TimeRule::Part part : kTimeParts) {
    if (PartName(part) == described.part()) rule.part = part;
  }
  if (!v1::DateTimeColumn::Format_Parse(absl::AsciiStrToUpper(described.format()), &rule.format)) return {};
  rule.age_at = described.age_at();
  return rule;
}

v1::DateTimeColumn::Feature FeatureOf(const v1::DateTimeColumn& column, TimeRule::Part part) {
  switch (part) {
    case TimeRule::Part::kHour:
      return column.hour();
    case TimeRule::Part::kWeekday:
      return column.weekday();
    case TimeRule::Part::kAgeDays:
      return column.age_days();
    case TimeRule::Part::kNone:
      break;
  }
  return v1::DateTimeColumn::NONE;
}

void SetFeature(TimeRule::Part part, v1::DateTimeColumn::Feature feature, v1::DateTimeColumn* column) {
  if (part == TimeRule::Part::kHour) column->set_hour(feature);
  if (part == TimeRule::Part::kWeekday) column->set_weekday(feature);
  if (part == TimeRule::Part::kAgeDays) column->set_age_days(feature);
}

}  // namespace lodestone::worker
