// Fields that have any number of categories (csv.multi).
//
// Thread safety: a plain value, and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/strings/string_view.h"
#include "proto/config.pb.h"
#include "worker/data/line_parser.h"

namespace lodestone::worker {

// How a column's categories come of its field.
struct MultiRule {
  bool several = false;  // Otherwise it has one, and the rest means nothing.
  v1::MultiColumn::Pooling pooling = v1::MultiColumn::MEAN;
  std::string separator;
  uint32_t values_max = 0;
};

MultiRule MultiRuleOf(const v1::MultiColumn& config);
// As descriptions call a pooling, and the pooling of that name, nullopt if there is none.
std::string PoolingName(v1::MultiColumn::Pooling pooling);
std::optional<v1::MultiColumn::Pooling> PoolingNamed(const std::string& name);

// The categories of one sample's field, one after another: the first values_max count.
class FieldCategories {
 public:
  // Adds the keys to `parsed`, which must outlive it.
  FieldCategories(const MultiRule& rule, uint64_t salt, ParsedLine* parsed)
      : rule_(rule), salt_(salt), parsed_(*parsed) {}

  // One category, without the blanks around it; none if `is_missing` says so of what is left.
  template <typename IsMissing>
  void Add(absl::string_view text, const IsMissing& is_missing) {
    text = Trimmed(text);
    if (!is_missing(text)) AddKey(text);
  }
  // Those of a text that is cut at the separator.
  template <typename IsMissing>
  void AddText(absl::string_view text, const IsMissing& is_missing) {
    for (bool last = false; !last;) {
      const size_t end = text.find(rule_.separator);
      last = end == absl::string_view::npos;
      Add(text.substr(0, end), is_missing);
      if (!last) text.remove_prefix(end + rule_.separator.size());
    }
  }
  // No more follow: without any it has the empty category.
  void Finish();

 private:
  static absl::string_view Trimmed(absl::string_view text);
  void AddKey(absl::string_view text);

  const MultiRule& rule_;
  const uint64_t salt_;
  ParsedLine& parsed_;
  uint32_t count_ = 0;
};

// Sets the values beside a sample's keys, once all are there: of a field whose categories' mean counts one by their
// number. REQUIRES: parsed->field_keys has the number of keys by field, of as many fields as there are rules.
void SetPoolingValues(std::span<const MultiRule> rules, ParsedLine* parsed);

}  // namespace lodestone::worker
