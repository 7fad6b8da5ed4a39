// Fuzzes the reader of safetensors files: any bytes must end in tensors that lie inside the file, or in an error that
// says what is wrong. The first byte chooses whether the rest is the file, or its header and data with the header's
// length set right. To run it for a minute:
//   bazel build --config=asan //tests/fuzz:safetensors_fuzz
//   bazel-bin/tests/fuzz/safetensors_fuzz -max_total_time=60 -timeout=10 -max_len=4096 "$(mktemp -d)" \
//       tests/fuzz/safetensors_corpus
#include <cstdint>
#include <cstring>
#include <string>

#include "common/base/check.h"
#include "common/io/memory_file.h"
#include "tools/psctl/files/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using lodestone::psctl::Safetensors;
  if (size == 0) return 0;
  std::string file(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 4 != 0) {
    // The header ends at the last brace; what follows it is data.
    const uint64_t header = file.rfind('}') == std::string::npos ? file.size() : file.rfind('}') + 1;
    std::string length(sizeof(header), '\0');
    std::memcpy(length.data(), &header, sizeof(header));
    file.insert(0, length);
  }
  const auto memory = lodestone::MemoryFile::Make(file);
  LODESTONE_CHECK(memory.ok());
  const auto tensors = lodestone::psctl::Safetensors::Open((*memory)->path());
  if (!tensors.ok()) {
    LODESTONE_CHECK(!tensors.status().message().empty());
    return 0;
  }
  uint64_t sum = 0;
  for (const auto& [name, tensor] : (*tensors)->tensors()) {
    LODESTONE_CHECK(tensor.bytes.size() <= file.size());
    for (const uint8_t byte : tensor.bytes) sum += byte;  // Where they cannot be read, it shows.
    LODESTONE_CHECK(sum <= 255 * file.size() * (*tensors)->tensors().size());
  }
  return 0;
}
