// Files of named tensors that other programs read: safetensors (Hugging Face) and npz (NumPy). Written as a stream, so
// that a tensor need not fit into memory.
//
// Not thread-safe. A file appears under its name once it is whole, as an OutputFile (common/io/output_file.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lodestone::psctl {

enum class TensorType { kFloat32, kUint64, kInt64 };

struct Tensor {
  std::string name;
  TensorType type = TensorType::kFloat32;
  std::vector<uint64_t> shape;  // Row-major.

  uint64_t bytes() const;
};

class TensorFile {
 public:
  // INVALID_ARGUMENT if the end of a file's name, .safetensors or .npz, does not say which kind it is, or npz cannot be
  // written there: to a FIFO or a device.
  static absl::Status CheckPath(const std::string& path);
  // Texts about the tensors, by name: in safetensors' header by that name; in npz a member NAME.json, which NumPy gives
  // as bytes.
  using Metadata = std::map<std::string, std::string>;
  // Begins a file of these tensors. INVALID_ARGUMENT if the path is wrong (npz: also that of a FIFO or a device) or two
  // tensors have one name.
  static absl::StatusOr<std::unique_ptr<TensorFile>> Create(const std::string& path, std::vector<Tensor> tensors,
                                                            const Metadata& metadata);
  virtual ~TensorFile() = default;

  // The next bytes of the tensors' content, little-endian, one tensor after the other.
  virtual absl::Status Append(std::span<const uint8_t> bytes) = 0;
  // REQUIRES: all bytes of all tensors have been appended.
  virtual absl::Status Finish() = 0;
  // Of the file, so far.
  virtual uint64_t bytes() const = 0;
};

}  // namespace lodestone::psctl
