#include "worker/data/file_parts.h"

#include <sys/stat.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/data/byte_source.h"
#include "worker/data/criteo_npy.h"
#include "worker/data/parquet_reader.h"

namespace lodestone::worker {
namespace {

constexpr uint64_t kBlocksPerPartition = 64;
constexpr uint64_t kBlockBytesMin = 4096;
constexpr uint64_t kBlockBytesMax = 8 << 20;

uint64_t SizeOf(const std::string& file) {
  struct stat info;
  return stat(file.c_str(), &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
}

// All parts of a file.
absl::StatusOr<std::vector<FilePart>> PartsOf(const std::string& file, v1::DataConfig::Format format,
                                              uint32_t partitions) {
  std::vector<FilePart> parts;
  if (format == v1::DataConfig::PARQUET) {
    LODESTONE_ASSIGN_OR_RETURN(const ParquetFile parquet, ParquetFile::Open(file));
    const std::vector<ParquetRowGroup>& groups = parquet.metadata.row_groups;
    for (size_t g = 0; g < groups.size(); ++g) {
      uint64_t bytes = 0;
      for (const ParquetChunk& chunk : groups[g].chunks) bytes += chunk.bytes;
      parts.push_back({file, g, g + 1, bytes});
    }
    return parts;
  }
  const auto block_of = [partitions](uint64_t bytes) {
    return std::clamp(bytes / (kBlocksPerPartition * partitions), kBlockBytesMin, kBlockBytesMax);
  };
  if (format == v1::DataConfig::CRITEO_NPY) {
    LODESTONE_ASSIGN_OR_RETURN(const CriteoDay day, CriteoDay::Open(file, /*with_labels=*/true));
    const uint64_t rows = day.numbers.rows(), row = day.row_bytes();
    const uint64_t block = block_of(rows * row) / row;
    for (uint64_t begin = 0; begin < rows; begin += block) {
      const uint64_t end = std::min(rows, begin + block);
      parts.push_back({file, begin, end, (end - begin) * day.numbers.row_bytes()});
    }
    return parts;
  }
  const uint64_t size = SizeOf(file);
  if (ByteSource::IsPacked(file)) return std::vector<FilePart>{{.file = file, .bytes = size}};
  const uint64_t block = block_of(size);
  for (uint64_t begin = 0; begin < size; begin += block) {
    const uint64_t end = std::min(size, begin + block);
    parts.push_back({file, begin, end, end - begin});
  }
  return parts;
}

}  // namespace

std::vector<FilePart> WholeFiles(const std::vector<std::string>& files) {
  std::vector<FilePart> parts;
  for (const std::string& file : files) parts.push_back({.file = file, .bytes = SizeOf(file)});
  return parts;
}

absl::StatusOr<std::vector<FilePart>> ShareOf(const std::vector<std::string>& files, v1::DataConfig::Format format,
                                              const Partition& partition) {
  std::vector<FilePart> share;
  uint64_t index = 0;
  for (const std::string& file : files) {
    LODESTONE_ASSIGN_OR_RETURN(std::vector<FilePart> parts, PartsOf(file, format, partition.count));
    for (FilePart& part : parts) {
      if (partition.Has(index++)) share.push_back(std::move(part));
    }
  }
  if (!share.empty()) return share;
  return absl::InvalidArgumentError(absl::StrCat("data.read: share leaves nothing to read for one of ", partition.count,
                                                 " workers: the training files have ", index,
                                                 " parts (blocks of text or npy rows, row groups of Parquet, packed "
                                                 "files); set data.read: all, or use fewer workers"));
}

}  // namespace lodestone::worker
