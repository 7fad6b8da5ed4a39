#include "worker/data/format.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "worker/data/byte_source.h"
#include "worker/data/line_reader.h"
#include "worker/data/npy_header.h"
#include "worker/data/number.h"

namespace lodestone::worker {
namespace {

constexpr int kLinesLookedAt = 100;

bool IsNumber(absl::string_view text) {
  double value;
  return ParseNumber(text, &value);
}

bool IsCriteo(absl::string_view line) {
  const std::vector<absl::string_view> columns = absl::StrSplit(line, '\t');
  if (columns.size() != 40 || !IsNumber(columns[0])) return false;
  for (size_t i = 1; i < columns.size(); ++i) {
    if (columns[i].empty()) continue;
    if (i < 14 ? !IsNumber(columns[i])
               : columns[i].size() > 16 || !std::all_of(columns[i].begin(), columns[i].end(), absl::ascii_isxdigit)) {
      return false;
    }
  }
  return true;
}

// Takes "123:" from the beginning of the token.
bool TakeIndex(absl::string_view* token) {
  const size_t colon = token->find(':');
  if (colon == absl::string_view::npos || colon == 0) return false;
  const absl::string_view key = token->substr(0, colon);
  token->remove_prefix(colon + 1);
  return std::all_of(key.begin(), key.end(), absl::ascii_isdigit);
}

// Whether it is "key:value" or "qid:..."; with `fields`, "field:key:value" or that.
bool IsFeature(absl::string_view token, bool fields) {
  if (absl::StartsWith(token, "qid:")) return true;
  return TakeIndex(&token) && (!fields || TakeIndex(&token)) && IsNumber(token);
}

// CSV where a line has but one word, and might be of any format.
v1::DataConfig::Format FormatOfLine(absl::string_view line) {
  if (IsCriteo(line)) return v1::DataConfig::CRITEO;
  line = line.substr(0, line.find('#'));
  const std::vector<absl::string_view> tokens = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  if (tokens.size() < 2 || absl::StrContains(tokens[0], ':')) return v1::DataConfig::CSV;
  const auto all_features = [&](bool fields) {
    return std::all_of(tokens.begin() + 1, tokens.end(), [=](absl::string_view t) { return IsFeature(t, fields); });
  };
  if (all_features(false)) return v1::DataConfig::LIBSVM;
  return all_features(true) ? v1::DataConfig::LIBFFM : v1::DataConfig::CSV;
}

}  // namespace

absl::StatusOr<v1::DataConfig::Format> DetectFormat(const std::string& file) {
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<ByteSource> source, ByteSource::Open(file));
  char magic[kNpyMagic.size()] = {};
  LODESTONE_ASSIGN_OR_RETURN(const size_t size, source->Read(magic, sizeof(magic)));
  if (size >= 4 && std::memcmp(magic, "\0\0\x08", 3) == 0) return v1::DataConfig::IDX;
  if (size >= 4 && std::memcmp(magic, "PAR1", 4) == 0) return v1::DataConfig::PARQUET;
  if (absl::string_view(magic, size) == kNpyMagic) return v1::DataConfig::CRITEO_NPY;
  const std::string name = absl::AsciiStrToLower(absl::StripSuffix(absl::StripSuffix(file, ".gz"), ".zst"));
  for (absl::string_view ending : {".libsvm", ".svm", ".libfm"}) {
    if (absl::EndsWith(name, ending)) return v1::DataConfig::LIBSVM;
  }
  if (absl::EndsWith(name, ".ffm") || absl::EndsWith(name, ".libffm")) return v1::DataConfig::LIBFFM;
  if (absl::EndsWith(name, ".csv")) return v1::DataConfig::CSV;

  LODESTONE_ASSIGN_OR_RETURN(LineReader reader, LineReader::Open(file));
  for (int i = 0; i < kLinesLookedAt; ++i) {
    absl::string_view line;
    LODESTONE_ASSIGN_OR_RETURN(const bool found, reader.Next(&line));
    if (!found) break;
    if (FormatOfLine(line) != v1::DataConfig::CSV) return FormatOfLine(line);
    // A libsvm sample may have no feature; any other line with several words decides.
    const absl::string_view words = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (words.find_first_of(" \t,;|:") != absl::string_view::npos) break;
  }
  return v1::DataConfig::CSV;
}

}  // namespace lodestone::worker
