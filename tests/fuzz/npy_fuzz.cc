// Fuzzes the reader of Criteo's npy files: any bytes must end in samples of which there are as many as the arrays have
// rows, or in an error that says what is wrong. The first four bytes are how many bytes of numbers and of categories
// there are, two each with the lower first; the numbers, categories and labels follow. To run it for a minute:
//   bazel build --config=asan //tests/fuzz:npy_fuzz
//   bazel-bin/tests/fuzz/npy_fuzz -max_total_time=60 -timeout=10 -max_len=4096 "$(mktemp -d)" tests/fuzz/npy_corpus
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/io/memory_file.h"
#include "worker/data/criteo_npy.h"

namespace lodestone {
namespace {

void ReadDay(worker::CriteoDay day, v1::Transform transform, bool labels) {
  const uint64_t rows = day.numbers.rows();
  worker::CriteoNpyReader reader(std::move(day), transform, {});
  worker::ParsedLine parsed;
  uint64_t read = 0;
  while (true) {
    worker::LineError error;
    const auto outcome = reader.Next(&parsed, &error);
    LODESTONE_CHECK(outcome.ok());
    LODESTONE_CHECK((*outcome == worker::LineOutcome::kMalformed) == !error.message.empty());
    if (*outcome == worker::LineOutcome::kBlank) break;
    ++read;
    LODESTONE_CHECK(!reader.PlaceOf(reader.position(), error).empty());
    LODESTONE_CHECK(parsed.label.empty() == !labels);
    if (*outcome == worker::LineOutcome::kMalformed) continue;
    LODESTONE_CHECK(parsed.numeric.size() == worker::kCriteoNumbers);
    LODESTONE_CHECK(parsed.keys.size() == worker::kCriteoCategories);
    for (const float number : parsed.numeric) LODESTONE_CHECK(std::isfinite(number));
  }
  LODESTONE_CHECK(read == rows);
}

}  // namespace
}  // namespace lodestone

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lodestone;  // NOLINT: one function.
  constexpr size_t kSizesBytes = 4;
  if (size < kSizesBytes) return 0;
  absl::string_view bytes(reinterpret_cast<const char*>(data) + kSizesBytes, size - kSizesBytes);
  const auto take = [&](size_t count) {
    const absl::string_view taken = bytes.substr(0, count);
    bytes.remove_prefix(taken.size());
    return taken;
  };
  const auto numbers = MemoryFile::Make(take(data[0] | data[1] << 8));
  const auto categories = MemoryFile::Make(take(data[2] | data[3] << 8));
  const auto labels = MemoryFile::Make(bytes);
  LODESTONE_CHECK(numbers.ok() && categories.ok() && labels.ok());
  for (const bool with_labels : {false, true}) {
    auto day =
        worker::CriteoDay::OpenFiles((*numbers)->path(), (*categories)->path(), with_labels ? (*labels)->path() : "");
    if (!day.ok()) {
      LODESTONE_CHECK(!day.status().message().empty());
      continue;
    }
    ReadDay(*std::move(day), with_labels ? v1::NONE : v1::LOG, with_labels);
  }
  return 0;
}
