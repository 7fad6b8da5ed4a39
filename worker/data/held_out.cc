#include "absl/strings/str_cat.h"
#include "worker/data/dataset.h"

namespace lodestone::worker {

absl::Status CheckHeldOut(const Partition& partition, uint64_t samples, uint64_t trained) {
  if (partition.test_share <= 0 || (trained > 0 && trained < samples)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("data.test_share: ", partition.test_share, " of the ", samples,
                                                 " samples in the training files leaves none to ",
                                                 trained == 0 ? "train on" : "test with", "; set another share"));
}

uint64_t EvenStride(uint64_t size, uint64_t max) {
  uint64_t stride = 1;
  while ((size + stride - 1) / stride > max) stride *= 2;
  return stride;
}

}  // namespace lodestone::worker
