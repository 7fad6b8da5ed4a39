#include "server/coordinator/state_file.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/byte_view.h"
#include "common/io/file.h"
#include "common/io/record_file.h"

namespace lodestone::server {

absl::StatusOr<std::optional<v1::CoordinatorState>> ReadCoordinatorState(const std::string& path) {
  const auto reader = RecordReader::Open(path);
  if (absl::IsNotFound(reader.status())) return std::nullopt;
  if (!reader.ok()) return reader.status();
  v1::CoordinatorState state;
  ByteView payload;
  switch ((*reader)->Next(&state, &payload)) {
    case RecordReader::Outcome::kRecord:
      break;
    case RecordReader::Outcome::kEnd:
      return absl::DataLossError(absl::StrCat(path, ": the file is empty"));
    case RecordReader::Outcome::kTorn:
    case RecordReader::Outcome::kDamaged:
      return (*reader)->error();
  }
  ByteView more;
  v1::CoordinatorState second;
  if ((*reader)->Next(&second, &more) == RecordReader::Outcome::kEnd) return state;
  return absl::DataLossError(
      absl::StrCat(path, ": at offset ", (*reader)->offset(), ": there is more than the one record"));
}

absl::Status WriteCoordinatorState(const std::string& path, const v1::CoordinatorState& state) {
  return ReplaceFile(path, RecordBuilder(state, {}).Copy());
}

}  // namespace lodestone::server
