#include "worker/report/tensorboard.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/io/crc32c.h"
#include "proto/tensorboard.pb.h"

namespace lodestone::worker {
namespace {

template <typename Integer>
void AppendLittleEndian(Integer value, std::string* out) {
  for (size_t i = 0; i < sizeof(Integer); ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

// A checksum of bytes that may themselves hold checksums is masked: rotated by 15 bits, plus a constant.
uint32_t MaskedCrc32c(std::string_view bytes) {
  constexpr uint32_t kMaskDelta = 0xa282ead8;
  const uint32_t crc = Crc32c(bytes.data(), bytes.size());
  return ((crc >> 15) | (crc << 17)) + kMaskDelta;
}

std::string Record(const tensorboard::Event& event) {
  const std::string data = event.SerializeAsString();
  std::string record;
  AppendLittleEndian<uint64_t>(data.size(), &record);
  AppendLittleEndian(MaskedCrc32c(record), &record);
  record += data;
  AppendLittleEndian(MaskedCrc32c(data), &record);
  return record;
}

}  // namespace

std::string TensorBoardFileName(int64_t seconds, const std::string& host, int64_t pid) {
  return absl::StrCat("events.out.tfevents.", absl::StrFormat("%010d", seconds), ".", host, ".", pid);
}

std::string TensorBoardVersion(double wall_seconds) {
  tensorboard::Event event;
  event.set_wall_time(wall_seconds);
  event.set_file_version("brain.Event:2");
  return Record(event);
}

std::string TensorBoardScalars(double wall_seconds, int64_t step, std::span<const TensorBoardScalar> scalars) {
  tensorboard::Event event;
  event.set_wall_time(wall_seconds);
  event.set_step(step);
  for (const TensorBoardScalar& scalar : scalars) {
    tensorboard::Summary::Value* const value = event.mutable_summary()->add_value();
    value->set_tag(scalar.tag);
    value->set_simple_value(static_cast<float>(scalar.value));
  }
  return Record(event);
}

}  // namespace lodestone::worker
