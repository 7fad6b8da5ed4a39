#include "worker/data/parquet_values.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"

namespace lodestone::worker {
namespace {

uint32_t LittleEndian(absl::string_view bytes) {
  uint32_t number = 0;
  for (size_t i = 0; i < bytes.size(); ++i) number |= uint32_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
  return number;
}

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
  const uint64_t mask = (uint64_t{1} << bit_width_) - 1;
  for (uint32_t& number : numbers) {
    uint64_t window = 0;
    const size_t at = packed_bit_ / 8;
    std::memcpy(&window, packed_.data() + at, std::min<size_t>(sizeof(window), packed_.size() - at));
    number = static_cast<uint32_t>(window >> (packed_bit_ % 8) & mask);
    packed_bit_ += bit_width_;
  }
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

void ParquetValues::Clear() {
  numbers.clear();
  integers.clear();
  texts.clear();
}

void ParquetValues::AddFrom(const ParquetValues& other, size_t i) {
  if (are_texts) return texts.push_back(other.texts[i]);
  numbers.push_back(other.numbers[i]);
  if (are_integers) integers.push_back(other.integers[i]);
}

void ParquetValues::AddMissing() {
  if (are_texts) return texts.push_back({});
  numbers.push_back(std::numeric_limits<double>::quiet_NaN());
  if (are_integers) integers.push_back(0);
}

absl::Status CheckReadable(const ParquetColumn& column) {
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
  if (column.is_list) {
    return absl::UnimplementedError("it has lists; a sample has one value of each column");
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
