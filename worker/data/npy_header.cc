#include "worker/data/npy_header.h"

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "worker/data/line_parser.h"

namespace lodestone::worker {
namespace {

constexpr size_t kVersionAt = 6;
constexpr size_t kLengthAt = 8;
constexpr size_t kDimensionsMax = 64;  // As many as NumPy's arrays may have.

// Reads a literal of Python as far as headers have them: a dictionary of texts, truth values and tuples of integers.
class DictionaryParser {
 public:
  DictionaryParser(absl::string_view text, size_t offset) : text_(text), offset_(offset) {}

  absl::StatusOr<NpyHeader> Parse() {
    NpyHeader header;
    bool has_type = false, has_order = false, has_shape = false;
    LODESTONE_RETURN_IF_ERROR(Expect('{', "the header is no dictionary"));
    while (!Accept('}')) {
      const size_t begin = at_;
      LODESTONE_ASSIGN_OR_RETURN(const std::string key, Text("a key"));
      bool* const has = key == "descr"           ? &has_type
                        : key == "fortran_order" ? &has_order
                        : key == "shape"         ? &has_shape
                                                 : nullptr;
      if (has == nullptr || *has) {
        at_ = begin;
        return Error(absl::StrCat("the header has ", Quoted(key), has == nullptr ? "" : " twice",
                                  "; it should have descr, fortran_order and shape"));
      }
      *has = true;
      LODESTONE_RETURN_IF_ERROR(Expect(':', "a key without a value"));
      if (has == &has_type) {
        LODESTONE_ASSIGN_OR_RETURN(header.type, Type());
      } else if (has == &has_order) {
        LODESTONE_ASSIGN_OR_RETURN(header.fortran_order, Truth());
      } else {
        LODESTONE_ASSIGN_OR_RETURN(header.shape, Tuple());
      }
      if (Accept(',')) continue;
      LODESTONE_RETURN_IF_ERROR(Expect('}', "the dictionary does not end"));
      break;
    }
    SkipBlanks();
    if (at_ < text_.size()) return Error("there is more behind the dictionary");
    if (has_type && has_order && has_shape) return header;
    return Error(absl::StrCat("the header has no ", !has_type ? "descr" : !has_order ? "fortran_order" : "shape"));
  }

 private:
  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("byte ", offset_ + at_, ": ", what));
  }

  void SkipBlanks() {
    while (at_ < text_.size() && absl::ascii_isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  bool Accept(char c) {
    SkipBlanks();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  absl::Status Expect(char c, absl::string_view otherwise) {
    if (Accept(c)) return absl::OkStatus();
    return Error(absl::StrCat(otherwise, ": there is ", at_ == text_.size() ? "nothing" : Quoted(text_.substr(at_, 1)),
                              " instead of ", Quoted(absl::string_view(&c, 1))));
  }

  absl::StatusOr<std::string> Text(absl::string_view what) {
    SkipBlanks();
    const char quote = at_ == text_.size() ? '\0' : text_[at_];
    if (quote != '\'' && quote != '"') return Error(absl::StrCat(what, " is no text in quotes"));
    const size_t end = text_.find(quote, at_ + 1);
    const absl::string_view text = text_.substr(at_ + 1, end - at_ - 1);
    if (end == absl::string_view::npos || text.find('\\') != absl::string_view::npos) {
      return Error(absl::StrCat(what, " is no plain text in quotes"));
    }
    at_ = end + 1;
    return std::string(text);
  }

  absl::StatusOr<std::string> Type() {
    SkipBlanks();
    if (at_ < text_.size() && text_[at_] == '[') {
      return absl::UnimplementedError(absl::StrCat(
          "byte ", offset_ + at_, ": its elements have several fields each (descr is a list); write plain numbers"));
    }
    return Text("descr");
  }

  absl::StatusOr<bool> Truth() {
    SkipBlanks();
    for (const bool truth : {false, true}) {
      const absl::string_view word = truth ? "True" : "False";
      if (text_.substr(at_, word.size()) != word) continue;
      at_ += word.size();
      return truth;
    }
    return Error("fortran_order is neither True nor False");
  }

  absl::StatusOr<std::vector<uint64_t>> Tuple() {
    std::vector<uint64_t> numbers;
    LODESTONE_RETURN_IF_ERROR(Expect('(', "shape is no tuple"));
    while (!Accept(')')) {
      SkipBlanks();
      size_t end = at_;
      while (end < text_.size() && absl::ascii_isdigit(static_cast<unsigned char>(text_[end]))) ++end;
      uint64_t number = 0;
      if (!absl::SimpleAtoi(text_.substr(at_, end - at_), &number) || numbers.size() == kDimensionsMax) {
        return Error("shape is no tuple of a few sizes");
      }
      numbers.push_back(number);
      at_ = end;
      if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // As Python 2 wrote long integers.
      if (Accept(',')) continue;
      LODESTONE_RETURN_IF_ERROR(Expect(')', "shape does not end"));
      break;
    }
    return numbers;
  }

  const absl::string_view text_;
  const size_t offset_;
  size_t at_ = 0;
};

}  // namespace

absl::StatusOr<NpyDictionary> FindNpyDictionary(absl::string_view prefix) {
  if (prefix.substr(0, kNpyMagic.size()) != kNpyMagic) {
    return absl::InvalidArgumentError(
        "byte 0: it is no npy file: it does not begin with \\x93NUMPY; is it packed, or pickled?");
  }
  const auto byte = [&](size_t at) { return size_t{static_cast<unsigned char>(prefix[at])}; };
  if (prefix.size() < kLengthAt) return absl::InvalidArgumentError("byte 6: the file ends before npy's version");
  const size_t major = byte(kVersionAt), minor = byte(kVersionAt + 1);
  if (major < 1 || major > 3 || minor != 0) {
    return absl::InvalidArgumentError(absl::StrCat("byte ", kVersionAt, ": it is of npy's version ", major, ".", minor,
                                                   "; 1.0, 2.0 and 3.0 are known"));
  }
  const size_t length_bytes = major == 1 ? 2 : 4;
  if (prefix.size() < kLengthAt + length_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("byte ", kLengthAt, ": the file ends before its header's length"));
  }
  NpyDictionary found{.offset = kLengthAt + length_bytes};
  for (size_t i = 0; i < length_bytes; ++i) found.bytes |= byte(kLengthAt + i) << (8 * i);
  if (found.bytes <= limits::kNpyHeaderBytesMax) return found;
  return absl::InvalidArgumentError(absl::StrCat("byte ", kLengthAt, ": its header cannot have ", found.bytes,
                                                 " bytes: that of an array of numbers has about 118"));
}

absl::StatusOr<NpyHeader> ParseNpyDictionary(absl::string_view text, size_t offset) {
  return DictionaryParser(text, offset).Parse();
}

}  // namespace lodestone::worker
