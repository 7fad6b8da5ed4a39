// Fuzzes the reader of IDX files: any bytes must end in images of which there are as many as labels, or in an error
// that says what is wrong. The first byte is how many bytes of labels come beside their header; the rest are the
// images. To run it for a minute:
//   bazel build --config=asan //tests/fuzz:idx_fuzz
//   bazel-bin/tests/fuzz/idx_fuzz -max_total_time=60 -timeout=10 -max_len=4096 "$(mktemp -d)" tests/fuzz/idx_corpus
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/io/memory_file.h"
#include "worker/data/idx.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lodestone;  // NOLINT: one function.
  constexpr size_t kLabelHeaderBytes = 8;
  if (size == 0) return 0;
  const absl::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t label_bytes = std::min(bytes.size(), kLabelHeaderBytes + data[0]);
  const auto labels = MemoryFile::Make(bytes.substr(0, label_bytes));
  const auto images = MemoryFile::Make(bytes.substr(label_bytes));
  LODESTONE_CHECK(labels.ok() && images.ok());

  v1::DataConfig config;
  config.set_memory_max_bytes(64 << 20);
  config.set_numeric(v1::NONE);
  const worker::IdxFiles files{{(*images)->path()}, {(*labels)->path()}};
  const auto loaded =
      worker::LoadIdx(config, files, worker::IdxFiles(), worker::LabelKind::kClass, worker::Partition(), nullptr);
  if (!loaded.ok()) {
    LODESTONE_CHECK(!loaded.status().message().empty());
    return 0;
  }
  std::vector<uint64_t> all(std::min<uint64_t>(loaded->train->size(), 100));
  std::iota(all.begin(), all.end(), 0);
  worker::Batch batch;
  loaded->train->Read(all, &batch);
  LODESTONE_CHECK(batch.size == all.size() && batch.labels.size() == all.size());
  LODESTONE_CHECK(all.empty() || batch.numeric.size() % all.size() == 0);
  return 0;
}
