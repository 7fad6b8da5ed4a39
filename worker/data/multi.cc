#include "worker/data/multi.h"

#include "absl/strings/ascii.h"
#include "common/base/hash.h"

namespace lodestone::worker {

MultiRule MultiRuleOf(const v1::MultiColumn& config) {
  return {true, config.pooling(), config.separator(), config.values_max()};
}

std::string PoolingName(v1::MultiColumn::Pooling pooling) {
  return absl::AsciiStrToLower(v1::MultiColumn::Pooling_Name(pooling));
}

std::optional<v1::MultiColumn::Pooling> PoolingNamed(const std::string& name) {
  v1::MultiColumn::Pooling pooling;
  if (!v1::MultiColumn::Pooling_Parse(absl::AsciiStrToUpper(name), &pooling)) return std::nullopt;
  return pooling;
}

absl::string_view FieldCategories::Trimmed(absl::string_view text) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

void FieldCategories::AddKey(absl::string_view text) {
  if (count_ == rule_.values_max) return;
  parsed_.keys.push_back(StableHash({text.data(), text.size()}, salt_));
  ++count_;
}

void FieldCategories::Finish() {
  if (count_ == 0) {
    parsed_.keys.push_back(StableHash("", salt_));
    count_ = 1;
  }
  parsed_.field_keys.push_back(count_);
}

void SetPoolingValues(std::span<const MultiRule> rules, ParsedLine* parsed) {
  parsed->values.clear();
  size_t at = 0;
  for (size_t f = 0; f < rules.size(); ++f) {
    const uint32_t count = parsed->field_keys[f];
    if (rules[f].several && rules[f].pooling == v1::MultiColumn::MEAN && count > 1) {
      parsed->values.resize(parsed->keys.size(), 1.0f);
      for (size_t i = at; i < at + count; ++i) parsed->values[i] = 1.0f / static_cast<float>(count);
    }
    at += count;
  }
}

}  // namespace lodestone::worker
