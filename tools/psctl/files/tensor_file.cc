#include "tools/psctl/files/tensor_file.h"

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/io/output_file.h"
#include "nlohmann/json.hpp"

namespace lodestone::psctl {
namespace {

constexpr char kSafetensors[] = ".safetensors";
constexpr char kNpz[] = ".npz";

// The file under construction, and how much of it is written.
class Output {
 public:
  explicit Output(std::unique_ptr<OutputFile> file) : file_(std::move(file)) {}

  absl::Status Write(absl::string_view bytes) {
    offset_ += bytes.size();
    return file_->Write(std::string_view(bytes.data(), bytes.size()));
  }
  absl::Status Overwrite(uint64_t offset, absl::string_view bytes) {
    const File& file = file_->file();
    if (pwrite(file.fd(), bytes.data(), bytes.size(), static_cast<off_t>(offset)) ==
        static_cast<ssize_t>(bytes.size())) {
      return absl::OkStatus();
    }
    return absl::ErrnoToStatus(errno, absl::StrCat(file.path(), ": pwrite"));
  }
  absl::Status Publish() { return file_->Publish(); }
  uint64_t offset() const { return offset_; }

 private:
  const std::unique_ptr<OutputFile> file_;
  uint64_t offset_ = 0;
};

absl::Status NoNpzInPieces(const std::string& path) {
  return absl::InvalidArgumentError(absl::StrCat(
      path,
      ": is a FIFO or a device, and an npz file is not written from its beginning to its end; a safetensors file is"));
}

absl::string_view Text(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// uint64 length of the header, the header as JSON, the content.
class SafetensorsWriter final : public TensorFile {
 public:
  explicit SafetensorsWriter(std::unique_ptr<Output> output) : output_(std::move(output)) {}

  absl::Status Begin(const std::vector<Tensor>& tensors, const Metadata& metadata) {
    nlohmann::ordered_json header;
    header["__metadata__"] = nlohmann::ordered_json(metadata);
    for (const Tensor& tensor : tensors) {
      const uint64_t end = left_ + tensor.bytes();
      header[tensor.name] = {{"dtype", TypeName(tensor.type)}, {"shape", tensor.shape}, {"data_offsets", {left_, end}}};
      left_ = end;
    }
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');  // The content is aligned.
    const uint64_t size = text.size();
    LODESTONE_RETURN_IF_ERROR(output_->Write({reinterpret_cast<const char*>(&size), sizeof(size)}));
    return output_->Write(text);
  }

  absl::Status Append(std::span<const uint8_t> bytes) override {
    LODESTONE_CHECK(bytes.size() <= left_);
    left_ -= bytes.size();
    return output_->Write(Text(bytes));
  }

  absl::Status Finish() override {
    LODESTONE_CHECK(left_ == 0);
    return output_->Publish();
  }
  uint64_t bytes() const override { return output_->offset(); }

 private:
  static const char* TypeName(TensorType type) {
    switch (type) {
      case TensorType::kFloat32:
        return "F32";
      case TensorType::kUint64:
        return "U64";
      case TensorType::kInt64:
        return "I64";
    }
    return "";
  }

  std::unique_ptr<Output> output_;
  uint64_t left_ = 0;
};

// A zip archive with a file TENSOR.npy for each tensor, not compressed. Sizes and offsets are always given in zip64's
// fields too, which readers take where the others are all ones.
class NpzWriter final : public TensorFile {
 public:
  explicit NpzWriter(std::unique_ptr<Output> output) : output_(std::move(output)) {}

  absl::Status Begin(std::vector<Tensor> tensors, const Metadata& metadata) {
    for (Tensor& tensor : tensors) {
      Entry entry;
      entry.name = tensor.name + ".npy";
      entry.header = NpyHeader(tensor);
      entry.left = tensor.bytes();
      entry.bytes = entry.header.size() + entry.left;
      entries_.push_back(std::move(entry));
    }
    for (const auto& [name, text] : metadata) {
      Entry entry;
      entry.name = name + ".json";
      entry.header = text;
      entry.bytes = text.size();
      entries_.push_back(std::move(entry));
    }
    return OpenEntries();
  }

  absl::Status Append(std::span<const uint8_t> bytes) override {
    while (!bytes.empty()) {
      LODESTONE_CHECK(current_ < entries_.size());
      Entry& entry = entries_[current_];
      const std::span<const uint8_t> taken = bytes.first(std::min<uint64_t>(bytes.size(), entry.left));
      LODESTONE_RETURN_IF_ERROR(WriteContent(Text(taken), &entry));
      entry.left -= taken.size();
      bytes = bytes.subspan(taken.size());
      if (entry.left > 0) continue;
      LODESTONE_RETURN_IF_ERROR(CloseEntry());
      LODESTONE_RETURN_IF_ERROR(OpenEntries());
    }
    return absl::OkStatus();
  }

  absl::Status Finish() override {
    LODESTONE_CHECK(current_ == entries_.size());
    const uint64_t begin = output_->offset();
    for (const Entry& entry : entries_) LODESTONE_RETURN_IF_ERROR(WriteDirectory(entry));
    const uint64_t size = output_->offset() - begin;
    const uint64_t end = output_->offset();
    std::string text;
    Put<uint32_t>(0x06064b50, &text);  // Zip64 end of the directory.
    Put<uint64_t>(44, &text);
    Put<uint16_t>(kZip64Version, &text);
    Put<uint16_t>(kZip64Version, &text);
    Put<uint32_t>(0, &text);
    Put<uint32_t>(0, &text);
    for (const uint64_t number : {uint64_t{entries_.size()}, uint64_t{entries_.size()}, size, begin}) {
      Put<uint64_t>(number, &text);
    }
    Put<uint32_t>(0x07064b50, &text);  // Where that is.
    Put<uint32_t>(0, &text);
    Put<uint64_t>(end, &text);
    Put<uint32_t>(1, &text);
    Put<uint32_t>(0x06054b50, &text);  // End of the directory.
    Put<uint32_t>(0, &text);
    const auto count = static_cast<uint16_t>(std::min<size_t>(entries_.size(), UINT16_MAX));
    Put<uint16_t>(count, &text);
    Put<uint16_t>(count, &text);
    Put<uint32_t>(UINT32_MAX, &text);
    Put<uint32_t>(UINT32_MAX, &text);
    Put<uint16_t>(0, &text);
    LODESTONE_RETURN_IF_ERROR(output_->Write(text));
    return output_->Publish();
  }
  uint64_t bytes() const override { return output_->offset(); }

 private:
  static constexpr uint16_t kZip64Version = 45;
  static constexpr uint16_t kDate = 1 << 5 | 1;  // 1980-01-01: the same content makes the same file.
  static constexpr size_t kCrcAt = 14;           // In a local header.

  struct Entry {
    std::string name;
    std::string header;
    uint64_t bytes = 0;  // With the header.
    uint64_t left = 0;   // Not appended yet.
    uint64_t offset = 0;
    uint32_t crc = 0;
  };

  template <typename T>
  static void Put(T number, std::string* text) {
    text->append(reinterpret_cast<const char*>(&number), sizeof(number));
  }

  static std::string NpyHeader(const Tensor& tensor) {
    const char* const type = tensor.type == TensorType::kFloat32  ? "<f4"
                             : tensor.type == TensorType::kUint64 ? "<u8"
                                                                  : "<i8";
    std::string dict = absl::StrCat("{'descr': '", type, "', 'fortran_order': False, 'shape': (",
                                    absl::StrJoin(tensor.shape, ", "), tensor.shape.size() == 1 ? "," : "", "), }");
    constexpr size_t kBefore = 10;
    dict.append(63 - (kBefore + dict.size()) % 64, ' ');
    dict += '\n';
    std::string header("\x93NUMPY\x01\x00", 8);
    Put<uint16_t>(static_cast<uint16_t>(dict.size()), &header);
    return header + dict;
  }

  // What local header and directory have in common.
  static void PutCommon(const Entry& entry, std::string* text) {
    Put<uint16_t>(0, text);  // Flags.
    Put<uint16_t>(0, text);  // Stored.
    Put<uint16_t>(0, text);  // Time.
    Put<uint16_t>(kDate, text);
    Put<uint32_t>(entry.crc, text);
    Put<uint32_t>(UINT32_MAX, text);
    Put<uint32_t>(UINT32_MAX, text);
    Put<uint16_t>(static_cast<uint16_t>(entry.name.size()), text);
  }

  // Begins the next entry, and ends it too if it is empty.
  absl::Status OpenEntries() {
    for (; current_ < entries_.size(); ++current_) {
      Entry& entry = entries_[current_];
      entry.offset = output_->offset();
      std::string text;
      Put<uint32_t>(0x04034b50, &text);
      Put<uint16_t>(kZip64Version, &text);
      PutCommon(entry, &text);
      Put<uint16_t>(20, &text);
      text += entry.name;
      Put<uint16_t>(1, &text);
      Put<uint16_t>(16, &text);
      Put<uint64_t>(entry.bytes, &text);
      Put<uint64_t>(entry.bytes, &text);
      LODESTONE_RETURN_IF_ERROR(output_->Write(text));
      LODESTONE_RETURN_IF_ERROR(WriteContent(entry.header, &entry));
      if (entry.left > 0) return absl::OkStatus();
      LODESTONE_RETURN_IF_ERROR(PatchCrc(entry));
    }
    return absl::OkStatus();
  }
  absl::Status CloseEntry() { return PatchCrc(entries_[current_++]); }
  absl::Status PatchCrc(const Entry& entry) {
    return output_->Overwrite(entry.offset + kCrcAt, {reinterpret_cast<const char*>(&entry.crc), sizeof(entry.crc)});
  }

  absl::Status WriteContent(absl::string_view bytes, Entry* entry) {
    entry->crc = static_cast<uint32_t>(crc32_z(entry->crc, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
    return output_->Write(bytes);
  }

  absl::Status WriteDirectory(const Entry& entry) {
    std::string text;
    Put<uint32_t>(0x02014b50, &text);
    Put<uint16_t>(kZip64Version, &text);
    Put<uint16_t>(kZip64Version, &text);
    PutCommon(entry, &text);
    Put<uint16_t>(28, &text);
    Put<uint16_t>(0, &text);  // Comment.
    Put<uint16_t>(0, &text);  // Disk.
    Put<uint16_t>(0, &text);  // Attributes.
    Put<uint32_t>(0, &text);
    Put<uint32_t>(UINT32_MAX, &text);
    text += entry.name;
    Put<uint16_t>(1, &text);
    Put<uint16_t>(24, &text);
    for (const uint64_t number : {entry.bytes, entry.bytes, entry.offset}) Put<uint64_t>(number, &text);
    return output_->Write(text);
  }

  std::unique_ptr<Output> output_;
  std::vector<Entry> entries_;
  size_t current_ = 0;
};

}  // namespace

uint64_t Tensor::bytes() const {
  uint64_t bytes = type == TensorType::kFloat32 ? 4 : 8;
  for (const uint64_t extent : shape) bytes *= extent;
  return bytes;
}

absl::Status TensorFile::CheckPath(const std::string& path) {
  if (absl::EndsWith(path, kSafetensors)) return absl::OkStatus();
  if (!absl::EndsWith(path, kNpz)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the name must end in ", kSafetensors, " or ", kNpz));
  }
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  return std::filesystem::is_fifo(status) || std::filesystem::is_character_file(status) ? NoNpzInPieces(path)
                                                                                        : absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TensorFile>> TensorFile::Create(const std::string& path, std::vector<Tensor> tensors,
                                                               const Metadata& metadata) {
  LODESTONE_RETURN_IF_ERROR(CheckPath(path));
  std::set<std::string> names;
  for (const Tensor& tensor : tensors) {
    if (names.insert(tensor.name).second) continue;
    return absl::InvalidArgumentError(absl::StrCat("two tensors would be called `", tensor.name, "`"));
  }
  LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<OutputFile> file, OutputFile::Open(path));
  const bool is_npz = absl::EndsWith(path, kNpz);
  if (is_npz && file->is_direct()) return NoNpzInPieces(path);
  auto output = std::make_unique<Output>(std::move(file));
  if (!is_npz) {
    auto made = std::make_unique<SafetensorsWriter>(std::move(output));
    LODESTONE_RETURN_IF_ERROR(made->Begin(tensors, metadata));
    return made;
  }
  auto made = std::make_unique<NpzWriter>(std::move(output));
  LODESTONE_RETURN_IF_ERROR(made->Begin(std::move(tensors), metadata));
  return made;
}

}  // namespace lodestone::psctl
