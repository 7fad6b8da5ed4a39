// Fuzzes the reader of Parquet files: any bytes must end in samples, or in an error that says what is wrong. To run it
// for a minute:
//   bazel build --config=asan //tests/fuzz:parquet_fuzz
//   bazel-bin/tests/fuzz/parquet_fuzz -max_total_time=60 -timeout=10 "$(mktemp -d)" tests/fuzz/parquet_corpus
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/io/memory_file.h"
#include "worker/data/text_loader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lodestone;  // NOLINT: one function.
  const auto file = MemoryFile::Make(absl::string_view(reinterpret_cast<const char*>(data), size));
  LODESTONE_CHECK(file.ok());
  for (const bool lists : {false, true}) {
    v1::DataConfig config;
    config.set_memory_max_bytes(64 << 20);
    config.set_numeric(v1::NONE);
    config.mutable_csv()->set_label("0");
    if (lists) {
      (*config.mutable_csv()->mutable_multi())["1"].set_values_max(7);
      (*config.mutable_csv()->mutable_multi())["2"];
    } else {
      config.mutable_csv()->add_categorical("1-3");
    }
    const worker::DataFiles files{{(*file)->path()}, {}};
    const auto loaded = worker::LoadText(config, v1::DataConfig::PARQUET, files, worker::LabelKind::kClass,
                                         worker::Partition(), nullptr, nullptr);
    LODESTONE_CHECK(loaded.ok() || !loaded.status().message().empty());
  }
  return 0;
}
