// Fuzzes the reader of record files (logs, checkpoints): any bytes must end in records that are there, or in an outcome
// that says what is wrong. The first byte chooses whether the rest is the file, or says which records to write and how
// to spoil them. To run it for a minute:
//   bazel build --config=asan //tests/fuzz:record_fuzz
//   bazel-bin/tests/fuzz/record_fuzz -max_total_time=60 -timeout=10 -max_len=4096 "$(mktemp -d)"
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/check.h"
#include "common/io/memory_file.h"
#include "common/io/record_file.h"

namespace {

using lodestone::ByteView;
using lodestone::RecordBuilder;
using lodestone::RecordReader;
using Outcome = RecordReader::Outcome;

std::string Build(std::string_view message, std::string_view payload) {
  const ByteView views[] = {ByteView(reinterpret_cast<const uint8_t*>(payload.data()), payload.size())};
  return RecordBuilder(message, views).Copy();
}

// Reads `file` to its end: what comes then, and where.
Outcome Read(const std::string& file, uint64_t* offset) {
  const auto memory = lodestone::MemoryFile::Make(file);
  LODESTONE_CHECK(memory.ok());
  auto reader = RecordReader::Open((*memory)->path());
  LODESTONE_CHECK(reader.ok());
  *offset = 0;
  RecordReader::Record record;
  Outcome outcome;
  while ((outcome = (*reader)->Next(&record)) == Outcome::kRecord) {
    LODESTONE_CHECK((*reader)->offset() == *offset);
    std::string payload(record.payload.size(), '\0');
    record.payload.CopyTo(payload.data());
    const std::string again = Build(record.message, payload);
    LODESTONE_CHECK(file.compare(*offset, again.size(), again) == 0);
    *offset += again.size();
  }
  LODESTONE_CHECK((*reader)->offset() == *offset);
  LODESTONE_CHECK((outcome == Outcome::kEnd) == (*offset == file.size()));
  LODESTONE_CHECK((outcome == Outcome::kEnd) == (*reader)->error().ok());
  return outcome;
}

// Takes bytes off the front of the input.
struct Input {
  const uint8_t* data;
  size_t size;

  size_t Number() {
    if (size == 0) return 0;
    --size;
    return *data++;
  }
  std::string_view Bytes(size_t count) {
    const size_t taken = std::min(count, size);
    const std::string_view bytes(reinterpret_cast<const char*>(data), taken);
    data += taken;
    size -= taken;
    return bytes;
  }
};

// Some records, then cut, filled up with zeros, or with a changed byte: never is anything read from there on.
void Spoil(Input input) {
  std::string file;
  std::vector<size_t> begins;
  const size_t count = input.Number() % 5;
  for (size_t i = 0; i < count; ++i) {
    begins.push_back(file.size());
    const std::string_view message = input.Bytes(input.Number());
    file += Build(message, input.Bytes(input.Number()));
  }
  if (file.empty()) return;
  const size_t place = (input.Number() << 8 | input.Number()) % file.size();
  const size_t begin = *std::prev(std::upper_bound(begins.begin(), begins.end(), place));
  const size_t change = input.Number();
  std::string spoiled = file;
  bool cut = true;
  if (change % 3 == 0) {
    spoiled.resize(place);
  } else if (change % 3 == 1) {
    spoiled.resize(place);
    spoiled.resize(place + 1 + input.Number(), '\0');
  } else {
    cut = false;
    spoiled[place] = static_cast<char>(spoiled[place] ^ (change == 2 ? 1 : change));
  }
  uint64_t offset;
  const Outcome outcome = Read(spoiled, &offset);
  LODESTONE_CHECK(offset == begin);
  if (cut) LODESTONE_CHECK(outcome == (spoiled.size() == begin ? Outcome::kEnd : Outcome::kTorn));
  if (!cut) LODESTONE_CHECK(outcome != Outcome::kEnd);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  if (data[0] % 2 == 0) {
    Spoil({data + 1, size - 1});
  } else {
    uint64_t offset;
    Read(std::string(reinterpret_cast<const char*>(data) + 1, size - 1), &offset);
  }
  return 0;
}
