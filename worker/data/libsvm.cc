#include "worker/data/libsvm.h"

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "worker/data/number.h"
#include "worker/data/transform.h"

namespace lodestone::worker {
namespace {

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

// Parses "key:value" at `p`; returns its end, or null.
const char* ParseFeature(const char* p, const char* end, Key* key, double* value) {
  const char* const digits = p;
  Key k = 0;
  for (; p < end && IsDigit(*p); ++p) {
    if (__builtin_mul_overflow(k, Key{10}, &k) || __builtin_add_overflow(k, Key(*p - '0'), &k)) return nullptr;
  }
  if (p == digits || p == end || *p != ':') return nullptr;
  *key = k;
  p = ParseNumberPrefix(p + 1, end, value);
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
  bool all_ones = true;
  for (p = SkipSpaces(label_end, end); p < end; p = SkipSpaces(p, end)) {
    Key key = 0;
    double number = 0;
    const char* const next = ParseFeature(p, end, &key, &number);
    if (next == nullptr) {
      if (absl::string_view(p, end - p).substr(0, 4) != "qid:") {
        return malformed(p, "is not a feature, which is written as index:value");
      }
      p = SkipToken(p, end);
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

}  // namespace lodestone::worker
