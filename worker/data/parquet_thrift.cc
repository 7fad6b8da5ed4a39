#include "worker/data/parquet_thrift.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lodestone::worker {

void ThriftReader::Fail(absl::string_view what) {
  if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat("byte ", at_, ": ", what));
}

uint8_t ThriftReader::Byte() {
  if (!status_.ok()) return 0;
  if (at_ < bytes_.size()) return static_cast<uint8_t>(bytes_[at_++]);
  Fail("the bytes end too early");
  return 0;
}

uint64_t ThriftReader::Varint() {
  uint64_t number = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const uint8_t byte = Byte();
    number |= uint64_t{byte & 0x7fu} << shift;
    if ((byte & 0x80) == 0) return number;
  }
  Fail("a number has too many bytes");
  return 0;
}

uint8_t ThriftReader::Take() { return std::exchange(type_, uint8_t{0}); }

int64_t ThriftReader::Int() {
  switch (const uint8_t type = Take()) {
    case kTrue:
    case kFalse:
      return type == kTrue;
    case kByte:
      return static_cast<int8_t>(Byte());
    case kI16:
    case kI32:
    case kI64: {
      const uint64_t zigzag = Varint();
      return static_cast<int64_t>(zigzag >> 1) ^ -static_cast<int64_t>(zigzag & 1);
    }
    default:
      Fail("a number was expected");
      return 0;
  }
}

absl::string_view ThriftReader::Text() {
  if (Take() != kBinary) Fail("a text was expected");
  const uint64_t size = Varint();
  if (status_.ok() && size > bytes_.size() - at_) Fail("a text is longer than what is left");
  if (!status_.ok()) return {};
  at_ += size;
  return bytes_.substr(at_ - size, size);
}

void ThriftReader::Struct(absl::FunctionRef<void(int field)> read) {
  if (Take() != kStruct) Fail("a struct was expected");
  if (++depth_ > kDepthMax) Fail("structs are nested too deeply");
  int field = 0;
  while (status_.ok()) {
    const uint8_t head = Byte();
    if (head == 0) break;
    type_ = head & 0x0f;
    const uint8_t type = type_;
    if ((head >> 4) != 0) {
      field += head >> 4;
    } else {
      type_ = kI16;
      field = static_cast<int>(Int());
      type_ = type;
    }
    read(field);
    Skip();
  }
  --depth_;
}

void ThriftReader::List(absl::FunctionRef<void()> read) {
  const uint8_t list = Take();
  if (list != kList && list != kSet) Fail("a list was expected");
  if (++depth_ > kDepthMax) Fail("lists are nested too deeply");
  const uint8_t head = Byte();
  const uint64_t count = (head >> 4) == 15 ? Varint() : head >> 4;
  if (count > 0 && (head & 0x0f) == 0) Fail("a list of nothing");
  // Each element has a byte at least, so that a count that is made up ends soon.
  for (uint64_t i = 0; i < count && status_.ok(); ++i) {
    type_ = head & 0x0f;
    if (type_ == kTrue || type_ == kFalse) type_ = Byte() == kTrue ? kTrue : kFalse;
    read();
    Skip();
  }
  --depth_;
}

void ThriftReader::SkipMap() {
  if (++depth_ > kDepthMax) Fail("maps are nested too deeply");
  const uint64_t count = Varint();
  const uint8_t types = count > 0 ? Byte() : 0;
  for (uint64_t i = 0; i < count && status_.ok(); ++i) {
    for (const uint8_t type : {static_cast<uint8_t>(types >> 4), static_cast<uint8_t>(types & 0x0f)}) {
      if (type == 0) return Fail("a map of nothing");
      type_ = type;
      if (type_ == kTrue || type_ == kFalse) type_ = Byte() == kTrue ? kTrue : kFalse;
      Skip();
    }
  }
  --depth_;
}

void ThriftReader::Skip() {
  if (!status_.ok()) type_ = 0;
  switch (type_) {
    case 0:
    case kTrue:
    case kFalse:
      type_ = 0;
      return;
    case kByte:
    case kI16:
    case kI32:
    case kI64:
      Int();
      return;
    case kDouble:
      Take();
      for (int i = 0; i < 8; ++i) Byte();
      return;
    case kBinary:
      Text();
      return;
    case kList:
    case kSet:
      List([] {});
      return;
    case kMap:
      Take();
      SkipMap();
      return;
    case kStruct:
      Struct([](int) {});
      return;
    default:
      Fail(absl::StrCat("there is no type ", static_cast<int>(type_)));
  }
}

}  // namespace lodestone::worker
