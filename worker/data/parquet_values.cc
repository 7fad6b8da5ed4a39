#include "worker/data/parquet_values.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lodestone::worker {
namespace {

uint32_t LittleEndian(absl::string_view bytes) {
  uint32_t number = 0;
  for (size_t i = 0; i < bytes.size(); ++i) number |= uint32_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
  return number;
}

// The number of `width` bits that begins at `bit`.
uint32_t NumberAt(absl::string_view packed, uint64_t bit, uint32_t width) {
  uint64_t window = 0;
  const size_t at = bit / 8;
  if (packed.size() - at >= sizeof(window)) {
    std::memcpy(&window, packed.data() + at, sizeof(window));
  } else {
    std::memcpy(&window, packed.data() + at, packed.size() - at);
  }
  return static_cast<uint32_t>(window >> (bit % 8) & ((uint64_t{1} << width) - 1));
}

constexpr size_t kGroup = 8;  // Numbers that take a whole number of bytes, whatever their width.

// Groups of numbers of one width, whose places in a group are known when this is compiled. Looks at eight bytes from
// where each number begins.
template <uint32_t kWidth>
void UnpackGroups(const char* packed, uint32_t* to, size_t groups) {
  constexpr uint64_t kMask = (uint64_t{1} << kWidth) - 1;
  for (; groups > 0; --groups, packed += kWidth, to += kGroup) {
    for (size_t i = 0; i < kGroup; ++i) {
      uint64_t window;
      std::memcpy(&window, packed + i * kWidth / 8, sizeof(window));
      to[i] = static_cast<uint32_t>(window >> (i * kWidth % 8) & kMask);
    }
  }
}

template <size_t... kWidths>
constexpr auto UnpackersOf(std::index_sequence<kWidths...>) {
  return std::array{&UnpackGroups<kWidths + 1>...};
}

constexpr std::array kUnpackGroups = UnpackersOf(std::make_index_sequence<32>());  // By width, from 1.

}  // namespace

uint32_t BitWidthOf(uint32_t max) { return static_cast<uint32_t>(std::bit_width(max)); }

bool ParquetRuns::NextRun() {
  uint64_t head = 0;
  for (int shift = 0;; shift += 7) {
    if (bytes_.empty() || shift > 56) return false;
    const auto byte = static_cast<uint8_t>(bytes_.front());
    bytes_.remove_prefix(1);
    head |= uint64_t{byte & 0x7fu} << shift;
    if ((byte & 0x80) == 0) break;
  }
  if ((head & 1) == 0) {
    const size_t value_bytes = (bit_width_ + 7) / 8;
    if (bytes_.size() < value_bytes) return false;
    equal_left_ = head >> 1;
    equal_ = LittleEndian(bytes_.substr(0, value_bytes));
    bytes_.remove_prefix(value_bytes);
    return true;
  }
  // Groups of eight; the last may be cut off where its numbers end.
  const uint64_t groups = std::min<uint64_t>(head >> 1, bytes_.size() / std::max<uint32_t>(1, bit_width_) + 1);
  const size_t packed_bytes = std::min<uint64_t>(groups * bit_width_, bytes_.size());
  packed_ = bytes_.substr(0, packed_bytes);
  bytes_.remove_prefix(packed_bytes);
  packed_bit_ = 0;
  packed_left_ = bit_width_ == 0 ? 8 * (head >> 1) : std::min<uint64_t>(8 * groups, 8 * packed_bytes / bit_width_);
  return packed_left_ > 0 || (head >> 1) == 0;
}

void ParquetRuns::Unpack(std::span<uint32_t> numbers) {
  const uint32_t width = bit_width_;
  if (width == 0) return std::fill(numbers.begin(), numbers.end(), 0);
  // What comes behind the run may be looked at, too.
  const absl::string_view packed(packed_.data(), packed_.size() + bytes_.size());
  const auto next = [&](size_t count) {
    const auto begun = numbers.first(count);
    for (uint32_t& number : begun) {
      number = NumberAt(packed, packed_bit_, width);
      packed_bit_ += width;
    }
    numbers = numbers.subspan(count);
  };
  const size_t begun = packed_bit_ / width % kGroup;
  next(std::min(numbers.size(), begun == 0 ? 0 : kGroup - begun));
  // As long as there are eight bytes to look at behind a group's last number.
  const size_t at = packed_bit_ / 8, window = width + sizeof(uint64_t);
  const size_t left = packed.size() - at;
  const size_t groups = std::min(numbers.size() / kGroup, left < window ? 0 : (left - window) / width + 1);
  kUnpackGroups[width - 1](packed.data() + at, numbers.data(), groups);
  packed_bit_ += groups * kGroup * width;
  numbers = numbers.subspan(groups * kGroup);
  next(numbers.size());
}

bool ParquetRuns::Read(std::span<uint32_t> numbers) {
  while (!numbers.empty()) {
    size_t count = 0;
    if (equal_left_ > 0) {
      count = std::min<uint64_t>(equal_left_, numbers.size());
      std::fill_n(numbers.begin(), count, equal_);
      equal_left_ -= count;
    } else if (packed_left_ > 0) {
      count = std::min<uint64_t>(packed_left_, numbers.size());
      Unpack(numbers.first(count));
      packed_left_ -= count;
    } else if (!NextRun()) {
      return false;
    }
    numbers = numbers.subspan(count);
  }
  return true;
}

void ParquetValues::Truncate(size_t size) {
  if (are_texts) return texts.resize(size);
  numbers.resize(size);
  if (are_integers) integers.resize(size);
}

absl::Status CheckReadable(const ParquetColumn& column, bool with_lists) {
  const bool is_number = column.type == ParquetType::kInt32 || column.type == ParquetType::kInt64;
  if (column.type == ParquetType::kInt96) {
    return absl::UnimplementedError("its values are of INT96, an old format of times; write them as INT64 timestamps");
  }
  if (column.is_decimal && !is_number) {
    return absl::UnimplementedError("its decimals are of more than 18 digits; write them as doubles");
  }
  if (column.type == ParquetType::kFixedLenByteArray && column.type_length == 0) {
    return absl::InvalidArgumentError("its values have no bytes");
  }
  if (column.is_list && !with_lists) {
    return absl::UnimplementedError("it has lists; columns of lists are named in csv.multi");
  }
  if (column.max_repetition > 1) {
    return absl::UnimplementedError("it has lists in lists; write one list for each row");
  }
  return absl::OkStatus();
}

template <typename T>
bool PlainReader::ReadNumbers(size_t count, ParquetValues* values) {
  if (bytes_.size() / sizeof(T) < count) return false;
  const double unit = column_->is_decimal ? std::pow(10.0, column_->scale) : 1;
  for (size_t i = 0; i < count; ++i) {
    T number;
    std::memcpy(&number, bytes_.data() + i * sizeof(T), sizeof(T));
    if constexpr (std::numeric_limits<T>::is_integer) {
      const bool wraps = column_->is_unsigned && number < 0;
      const double whole =
          wraps ? static_cast<double>(static_cast<std::make_unsigned_t<T>>(number)) : static_cast<double>(number);
      values->numbers.push_back(whole / unit);
      if (values->are_integers) {
        values->integers.push_back(wraps ? static_cast<int64_t>(static_cast<std::make_unsigned_t<T>>(number)) : number);
      }
    } else {
      values->numbers.push_back(number);
    }
  }
  bytes_.remove_prefix(count * sizeof(T));
  return true;
}

bool PlainReader::ReadTruths(size_t count, ParquetValues* values) {
  if (bytes_.size() * 8 < bit_ + count) return false;
  for (size_t i = 0; i < count; ++i, ++bit_) {
    const int truth = static_cast<uint8_t>(bytes_[bit_ / 8]) >> (bit_ % 8) & 1;
    values->numbers.push_back(truth);
    values->integers.push_back(truth);
  }
  return true;
}

bool PlainReader::ReadTexts(size_t count, ParquetValues* values) {
  const bool fixed = column_->type == ParquetType::kFixedLenByteArray;
  for (size_t i = 0; i < count; ++i) {
    uint32_t size = column_->type_length;
    if (!fixed) {
      if (bytes_.size() < sizeof(size)) return false;
      size = LittleEndian(bytes_.substr(0, sizeof(size)));
      bytes_.remove_prefix(sizeof(size));
    }
    if (bytes_.size() < size) return false;
    values->texts.push_back(bytes_.substr(0, size));
    bytes_.remove_prefix(size);
  }
  return true;
}

bool PlainReader::Read(size_t count, ParquetValues* values) {
  switch (column_->type) {
    case ParquetType::kBoolean:
      return ReadTruths(count, values);
    case ParquetType::kInt32:
      return ReadNumbers<int32_t>(count, values);
    case ParquetType::kInt64:
      return ReadNumbers<int64_t>(count, values);
    case ParquetType::kFloat:
      return ReadNumbers<float>(count, values);
    case ParquetType::kDouble:
      return ReadNumbers<double>(count, values);
    case ParquetType::kByteArray:
    case ParquetType::kFixedLenByteArray:
      return ReadTexts(count, values);
    case ParquetType::kInt96:
      break;
  }
  return false;
}

}  // namespace lodestone::worker
