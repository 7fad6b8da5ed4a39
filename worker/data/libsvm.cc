#include "worker/data/libsvm.h"

#include <cmath>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/hash.h"
#include "worker/data/number.h"
#include "worker/data/transform.h"

namespace lodestone::worker {
namespace {

constexpr absl::string_view kGroupPrefix = "qid:";
const uint64_t kNoGroup = GroupOf("");

bool IsSpace(char c) { return c == ' ' || c == '\t'; }
bool IsDigit(char c) { return static_cast<unsigned char>(c - '0') < 10; }

const char* SkipSpaces(const char* p, const char* end) {
  while (p < end && IsSpace(*p)) ++p;
  return p;
}

const char* SkipToken(const char* p, const char* end) {
  while (p < end && !IsSpace(*p)) ++p;
  return p;
}

// Parses "123:" at `p`; returns its end, or null.
const char* ParseIndex(const char* p, const char* end, uint64_t* index) {
  const char* const digits = p;
  uint64_t k = 0;
  for (; p < end && IsDigit(*p); ++p) {
    if (__builtin_mul_overflow(k, uint64_t{10}, &k) || __builtin_add_overflow(k, uint64_t(*p - '0'), &k))
      return nullptr;
  }
  if (p == digits || p == end || *p != ':') return nullptr;
  *index = k;
  return p + 1;
}

// Parses "key:value" at `p`, with `fields` "field:key:value"; returns its end, or null.
const char* ParseFeature(const char* p, const char* end, bool fields, Key* key, double* value) {
  uint64_t field = 0;
  if (fields) p = ParseIndex(p, end, &field);
  if (p == nullptr) return nullptr;
  const char* const digits = p;
  p = ParseIndex(p, end, key);
  if (p == nullptr) return nullptr;
  if (fields) *key = StableHash({digits, static_cast<size_t>(p - 1 - digits)}, field);
  p = ParseNumberPrefix(p, end, value);
  if (p == nullptr || (p < end && !IsSpace(*p)) || !std::isfinite(static_cast<float>(*value))) return nullptr;
  return p;
}

}  // namespace

LineOutcome LibsvmParser::Parse(absl::string_view line, ParsedLine* parsed, LineError* error) {
  const char* const begin = line.data();
  const char* end = begin + line.size();
  if (const void* comment = std::memchr(begin, '#', line.size()); comment != nullptr) {
    end = static_cast<const char*>(comment);
  }
  const auto malformed = [&](const char* at, absl::string_view what) {
    const absl::string_view token(at, SkipToken(at, end) - at);
    error->column = at - begin + 1;
    error->message = absl::StrCat(Quoted(token), " ", what);
    return LineOutcome::kMalformed;
  };
  const char* p = SkipSpaces(begin, end);
  if (p == end) return LineOutcome::kBlank;
  const char* label_end = SkipToken(p, end);
  parsed->label = absl::string_view(p, label_end - p);
  parsed->label_column = p - begin + 1;
  const bool unlabelled = parsed->label.find(':') != absl::string_view::npos;
  if (unlabelled && label_optional_) {
    parsed->label = {};
    label_end = p;
  }
  if (unlabelled && !label_optional_) return malformed(p, "is no label, which a line begins with");
  parsed->keys.clear();
  parsed->values.clear();
  parsed->group = kNoGroup;
  bool all_ones = true;
  for (p = SkipSpaces(label_end, end); p < end; p = SkipSpaces(p, end)) {
    Key key = 0;
    double number = 0;
    const char* const next = ParseFeature(p, end, fields_, &key, &number);
    if (next == nullptr) {
      const absl::string_view token(p, SkipToken(p, end) - p);
      if (!absl::StartsWith(token, kGroupPrefix)) {
        return malformed(p, fields_ ? "is not a feature, which is written as field:index:value"
                                    : "is not a feature, which is written as index:value");
      }
      parsed->group = GroupOf(token.substr(kGroupPrefix.size()));
      p += token.size();
      continue;
    }
    const float value = TransformNumber(transform_, number);
    all_ones = all_ones && value == 1.0f;
    parsed->keys.push_back(key);
    parsed->values.push_back(value);
    p = next;
  }
  if (all_ones) parsed->values.clear();
  return LineOutcome::kSample;
}

bool HasLibsvmGroup(absl::string_view line) {
  for (const absl::string_view token :
       absl::StrSplit(line.substr(0, line.find('#')), absl::ByAnyChar(" \t"), absl::SkipEmpty())) {
    if (absl::StartsWith(token, kGroupPrefix)) return true;
  }
  return false;
}

}  // namespace lodestone::worker
