// Fuzzes the configuration reader: text and overrides from anywhere must end in a configuration or an error, and what
// is read must survive being printed. A first line "#set PATH=VALUE" is an override. To run it for a minute, with
// the code under test instrumented; what it finds goes to the folder `found`:
//   bazel build --config=asan //tests/fuzz:config_fuzz
//   mkdir -p found && bazel-bin/tests/fuzz/config_fuzz -max_total_time=60 -timeout=10 -max_len=4096 \
//       -dict=tests/fuzz/config.dict found tests/fuzz/config_corpus
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/config.h"

namespace {

using lodestone::ParseConfig;
using lodestone::PrintConfig;

// Takes the overrides off the front of `text`.
std::vector<std::string> TakeSets(std::string_view* text) {
  constexpr std::string_view kMark = "#set ";
  std::vector<std::string> sets;
  while (text->starts_with(kMark)) {
    const size_t end = text->find('\n');
    sets.emplace_back(text->substr(kMark.size(), end == std::string_view::npos ? end : end - kMark.size()));
    text->remove_prefix(end == std::string_view::npos ? text->size() : end + 1);
  }
  return sets;
}

void Fail(const char* what, const std::string& detail) {
  std::fprintf(stderr, "%s:\n%s\n", what, detail.c_str());
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::vector<std::string> sets = TakeSets(&text);
  const absl::StatusOr<lodestone::v1::Config> config = ParseConfig(text, "fuzz.yaml", sets);
  if (!config.ok()) {
    if (config.status().message().empty()) Fail("an error without a message", "");
    return 0;
  }
  const std::string printed = PrintConfig(*config);
  const absl::StatusOr<lodestone::v1::Config> again = ParseConfig(printed, "printed.yaml");
  if (!again.ok()) Fail("what was printed cannot be read", printed + again.status().ToString());
  // Once more, because the first print marks defaults that the second finds set.
  const std::string settled = PrintConfig(*again);
  const absl::StatusOr<lodestone::v1::Config> last = ParseConfig(settled, "settled.yaml");
  if (!last.ok() || PrintConfig(*last) != settled) Fail("print and read do not settle", settled);
  return 0;
}
