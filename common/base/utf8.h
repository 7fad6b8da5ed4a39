// UTF-8 as RFC 3629 defines it.
#pragma once

#include <cstddef>
#include <string_view>

namespace lodestone {

// Length in bytes of the character that starts at text[i], or 0 if no valid one does (overlong forms, surrogates and
// what lies above U+10FFFF are not valid). REQUIRES: i < text.size().
inline size_t Utf8Length(std::string_view text, size_t i) {
  const auto byte = [&](size_t j) { return static_cast<unsigned char>(text[j]); };
  const unsigned char first = byte(i);
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4) return 0;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (text.size() - i < length) return 0;
  for (size_t j = i + 1; j < i + length; ++j) {
    if ((byte(j) & 0xc0) != 0x80) return 0;
  }
  const unsigned char second = byte(i + 1);
  const bool out_of_range = (first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
                            (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f);
  return out_of_range ? 0 : length;
}

// The longest start of `text` of at most `bytes_max` bytes that ends where a character does. REQUIRES: it is valid.
inline std::string_view Utf8Prefix(std::string_view text, size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  size_t end = bytes_max;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end);
}

// Whether all of `text` is valid.
inline bool IsUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t length = Utf8Length(text, i);
    if (length == 0) return false;
    i += length;
  }
  return true;
}

}  // namespace lodestone
