#include "worker/data/csv_split.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lodestone::worker {
namespace {

bool StartsWith(const char* p, const char* end, absl::string_view prefix) {
  return static_cast<size_t>(end - p) >= prefix.size() && std::memcmp(p, prefix.data(), prefix.size()) == 0;
}

// Where the delimiter next stands; `end` if nowhere.
const char* FindDelimiter(const char* p, const char* end, absl::string_view delimiter) {
  for (; p < end; ++p) {
    if (*p == delimiter[0] && (delimiter.size() == 1 || StartsWith(p, end, delimiter))) return p;
  }
  return end;
}

// Skips blanks that are no delimiters.
const char* SkipBlanks(const char* p, const char* end, absl::string_view delimiter) {
  while (p < end && (*p == ' ' || *p == '\t') && !StartsWith(p, end, delimiter)) ++p;
  return p;
}

absl::string_view Trim(const char* begin, const char* end) {
  while (begin < end && (*begin == ' ' || *begin == '\t')) ++begin;
  while (begin < end && (end[-1] == ' ' || end[-1] == '\t')) --end;
  return {begin, static_cast<size_t>(end - begin)};
}

// Where the quoted text that starts at `p`, behind its quote, is closed; `end` if nowhere. Sets *doubled if it holds
// "".
const char* FindClosingQuote(const char* p, const char* end, bool* doubled) {
  while (p < end) {
    const void* quote = std::memchr(p, '"', end - p);
    if (quote == nullptr) return end;
    p = static_cast<const char*>(quote);
    if (p + 1 == end || p[1] != '"') return p;
    *doubled = true;
    p += 2;
  }
  return end;
}

// Appends `text` to `scratch` with every "" as " and returns the view of it.
absl::string_view Undouble(absl::string_view text, std::string* scratch) {
  const size_t begin = scratch->size();
  for (size_t i = 0; i < text.size(); ++i) {
    scratch->push_back(text[i]);
    if (text[i] == '"') ++i;
  }
  return absl::string_view(*scratch).substr(begin);
}

bool Fail(size_t column, std::string message, LineError* error) {
  error->column = column;
  error->message = std::move(message);
  return false;
}

}  // namespace

bool SplitCsv(absl::string_view line, absl::string_view delimiter, std::vector<CsvField>* fields, std::string* scratch,
              LineError* error) {
  fields->clear();
  const char* p = line.data();
  const char* end = p + line.size();
  const bool blanks = delimiter == " ";
  if (blanks) {
    const absl::string_view trimmed = Trim(p, end);
    p = trimmed.data();
    end = p + trimmed.size();
  }
  scratch->clear();
  bool reserved = false;
  while (true) {
    const char* const start = SkipBlanks(p, end, delimiter);
    const size_t column = start - line.data() + 1;
    if (fields->size() == kColumnsMax) {
      return Fail(column, absl::StrCat("more than ", kColumnsMax, " columns; is csv.delimiter right?"), error);
    }
    if (start < end && *start == '"') {
      bool doubled = false;
      const char* const close = FindClosingQuote(start + 1, end, &doubled);
      if (close == end) return Fail(column, "the quote that opens here is not closed", error);
      absl::string_view text(start + 1, close - start - 1);
      if (doubled) {
        if (!reserved) scratch->reserve(line.size());  // Views into it must stay.
        reserved = true;
        text = Undouble(text, scratch);
      }
      fields->push_back({text, column});
      p = SkipBlanks(close + 1, end, delimiter);
      if (p < end && !StartsWith(p, end, delimiter)) {
        return Fail(p - line.data() + 1, "text follows the closing quote", error);
      }
    } else {
      p = FindDelimiter(start, end, delimiter);
      fields->push_back({Trim(start, p), column});
    }
    if (p == end) return true;
    p += delimiter.size();
    while (blanks && p < end && *p == ' ') ++p;
  }
}

bool CsvEndsInQuotes(absl::string_view text, absl::string_view delimiter, bool inside) {
  const char* p = text.data();
  const char* const end = p + text.size();
  if (!inside && std::memchr(p, '"', text.size()) == nullptr) return false;
  while (true) {
    if (!inside) p = SkipBlanks(p, end, delimiter);
    if (inside || (p < end && *p == '"')) {
      bool doubled = false;
      p = FindClosingQuote(inside ? p : p + 1, end, &doubled);
      if (p == end) return true;
      inside = false;
      ++p;
    }
    p = FindDelimiter(p, end, delimiter);
    if (p == end) return false;
    p += delimiter.size();
  }
}

std::string DetectCsvDelimiter(absl::string_view line) {
  constexpr absl::string_view kCandidates[] = {",", "\t", ";", "|", "::", " "};
  absl::string_view best = ",";
  size_t best_count = 0;
  for (absl::string_view candidate : kCandidates) {
    if (candidate == " " && best_count > 0) break;
    size_t count = 0;
    bool quoted = false;
    for (size_t i = 0; i < line.size(); ++i) {
      if (line[i] == '"') quoted = !quoted;
      if (quoted || line.substr(i, candidate.size()) != candidate) continue;
      ++count;
      i += candidate.size() - 1;
    }
    if (count > best_count) {
      best = candidate;
      best_count = count;
    }
  }
  return std::string(best);
}

}  // namespace lodestone::worker
