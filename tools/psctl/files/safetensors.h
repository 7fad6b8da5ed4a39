// Reader of safetensors files: names, shapes and types of the tensors, and their bytes in place.
//
// Thread safety: immutable. The file must not be shortened while it lives.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lodestone::psctl {

class Safetensors {
 public:
  // DATA_LOSS, naming the file and what is wrong, if it is none.
  static absl::StatusOr<std::unique_ptr<Safetensors>> Open(const std::string& path);
  ~Safetensors();
  Safetensors(const Safetensors&) = delete;
  Safetensors& operator=(const Safetensors&) = delete;

  struct View {
    std::string type;             // "F32", "U64", ...
    std::vector<uint64_t> shape;  // Row-major.
    std::span<const uint8_t> bytes;
  };
  // By name.
  const std::map<std::string, View>& tensors() const { return tensors_; }
  // What Create of tensor_file.h was given under a name; empty if there is no such.
  const std::string& metadata(const std::string& name) const;

 private:
  Safetensors(uint8_t* data, uint64_t size) : data_(data), size_(size) {}
  absl::Status Parse();

  uint8_t* const data_;  // The file, mapped.
  const uint64_t size_;
  std::map<std::string, View> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace lodestone::psctl
