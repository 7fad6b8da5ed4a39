#include "tools/psctl/files/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/io/file.h"
#include "nlohmann/json.hpp"

namespace lodestone::psctl {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kHeaderBytesMax = 100'000'000;  // As the format says.

// Bytes of one element; 0 for a type that this program does not know.
uint64_t BytesOf(const std::string& type) {
  if (type == "F64" || type == "I64" || type == "U64") return 8;
  if (type == "F32" || type == "I32" || type == "U32") return 4;
  if (type == "F16" || type == "BF16" || type == "I16" || type == "U16") return 2;
  if (type == "I8" || type == "U8" || type == "BOOL") return 1;
  return 0;
}

// The numbers of a list, if it is one of numbers only.
bool NumbersAt(const Json& object, const char* key, std::vector<uint64_t>* numbers) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) return false;
  for (const Json& number : *found) {
    if (!number.is_number_unsigned()) return false;
    numbers->push_back(number.get<uint64_t>());
  }
  return true;
}

// Reads one tensor's entry in the header; `content` is what lies behind it.
absl::Status ParseTensor(const Json& entry, std::span<const uint8_t> content, Safetensors::View* view) {
  std::vector<uint64_t> offsets;
  if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string() ||
      !NumbersAt(entry, "shape", &view->shape) || !NumbersAt(entry, "data_offsets", &offsets) || offsets.size() != 2) {
    return absl::DataLossError("has no dtype, shape and data_offsets");
  }
  view->type = entry["dtype"].get<std::string>();
  if (offsets[0] > offsets[1] || offsets[1] > content.size()) {
    return absl::DataLossError(
        absl::StrCat("lies at ", offsets[0], " to ", offsets[1], " of ", content.size(), " bytes"));
  }
  uint64_t bytes = BytesOf(view->type);
  if (bytes == 0) return absl::DataLossError(absl::StrCat("has the type ", view->type, ", which is not known"));
  for (const uint64_t extent : view->shape) {
    if (extent > 0 && bytes > UINT64_MAX / extent) return absl::DataLossError("has an impossible shape");
    bytes *= extent;
  }
  if (bytes != offsets[1] - offsets[0]) {
    return absl::DataLossError(absl::StrCat("has ", offsets[1] - offsets[0], " bytes, and its shape needs ", bytes));
  }
  view->bytes = content.subspan(offsets[0], bytes);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Safetensors>> Safetensors::Open(const std::string& path) {
  LODESTONE_ASSIGN_OR_RETURN(const File file, File::Open(path, O_RDONLY));
  LODESTONE_ASSIGN_OR_RETURN(const uint64_t size, file.Size());
  if (size < sizeof(uint64_t)) return absl::DataLossError(absl::StrCat(path, ": is too short for a safetensors file"));
  void* const data = mmap(nullptr, size, PROT_READ, MAP_SHARED, file.fd(), 0);
  if (data == MAP_FAILED) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": mmap"));
  std::unique_ptr<Safetensors> made(new Safetensors(static_cast<uint8_t*>(data), size));
  LODESTONE_RETURN_IF_ERROR(Annotate(made->Parse(), path));
  return made;
}

Safetensors::~Safetensors() { munmap(data_, size_); }

const std::string& Safetensors::metadata(const std::string& name) const {
  static const std::string* const kNone = new std::string;
  const auto found = metadata_.find(name);
  return found == metadata_.end() ? *kNone : found->second;
}

absl::Status Safetensors::Parse() {
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, data_, sizeof(header_bytes));
  if (header_bytes > kHeaderBytesMax || header_bytes > size_ - sizeof(header_bytes)) {
    return absl::DataLossError(absl::StrCat("is no safetensors file: its header would have ", header_bytes, " bytes"));
  }
  const auto* const begin = reinterpret_cast<const char*>(data_) + sizeof(header_bytes);
  const Json header = Json::parse(begin, begin + header_bytes, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) return absl::DataLossError("is no safetensors file: its header is no JSON object");
  const std::span<const uint8_t> content(data_ + sizeof(header_bytes) + header_bytes,
                                         size_ - sizeof(header_bytes) - header_bytes);
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      if (!entry.is_object()) continue;
      for (const auto& [key, value] : entry.items()) {
        if (value.is_string()) metadata_[key] = value.get<std::string>();
      }
      continue;
    }
    View view;
    LODESTONE_RETURN_IF_ERROR(Annotate(ParseTensor(entry, content, &view), absl::StrCat("tensor `", name, "`")));
    tensors_.emplace(name, std::move(view));
  }
  return absl::OkStatus();
}

}  // namespace lodestone::psctl
