#include "worker/data/sample_limits.h"

#include "absl/strings/str_cat.h"

namespace lodestone::worker {

absl::Status TooMuchData(const v1::DataConfig& config) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "the data takes more than ", config.memory_max_bytes(),
      " bytes of memory; set data.spill_dir to a folder on a disk of this machine, raise data.memory_max_bytes or use ",
      "more workers"));
}

}  // namespace lodestone::worker
