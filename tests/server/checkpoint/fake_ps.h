// The shards of a ps with tables and pushes of every kind, and a checkpoint writer that knows them.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/wire/shard_map.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint_writer.h"
#include "tests/server/shard/filled_shard.h"

namespace lodestone::server {

// A folder of the test's own.
inline std::string FreshFolder() {
  std::string path = absl::StrCat(std::getenv("TEST_TMPDIR"), "/checkpoints_XXXXXX");
  EXPECT_NE(mkdtemp(path.data()), nullptr);
  return path;
}

inline std::string ReadWhole(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

inline void WriteWhole(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

// The files below a folder, relative to it, sorted.
inline std::vector<std::string> FilesBelow(const std::string& dir) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir)) {
    if (entry.is_regular_file()) files.push_back(entry.path().lexically_relative(dir));
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Server `server` of `servers`.
class FakePs {
 public:
  FakePs(uint32_t server, uint32_t servers, uint32_t shards, const std::vector<v1::TableSpec>& specs)
      : server_(server), servers_(servers), shards_total_(shards), specs_(specs) {
    const std::vector<uint32_t> owners = InitialOwners(shards, servers);
    for (ShardId shard = 0; shard < shards; ++shard) {
      if (owners[shard] == server) this->shards.try_emplace(shard, shard, shards, specs);
    }
  }

  CheckpointWriter::Options options(const std::string& dir) const {
    CheckpointWriter::Options options;
    options.dir = dir;
    options.cluster = "test";
    options.server = server_;
    return options;
  }
  std::unique_ptr<CheckpointWriter> OpenWriter(const std::string& dir) const { return OpenWriter(options(dir)); }
  static std::unique_ptr<CheckpointWriter> OpenWriter(CheckpointWriter::Options options) {
    auto writer = CheckpointWriter::Open(std::move(options));
    EXPECT_TRUE(writer.ok()) << writer.status();
    return *std::move(writer);
  }

  CheckpointWriter::Source source() {
    CheckpointWriter::Source source;
    for (const auto& [shard, content] : shards) source.shards.push_back(shard);
    source.collect = [this](ShardId shard, const Version* after) -> absl::StatusOr<Shard::State> {
      return shards.at(shard)->CollectState(after);
    };
    source.describe = [this](v1::ServerManifest* manifest) {
      manifest->set_servers(servers_);
      manifest->set_shards(shards_total_);
      manifest->set_seed(FilledShard::kSeed);
      manifest->set_lineage(lineage);
      for (const v1::TableSpec& spec : specs_) *manifest->add_tables() = spec;
    };
    return source;
  }

  void Run(uint32_t first, uint32_t last) {
    for (auto& [shard, content] : shards) content.Run(first, last);
  }
  std::map<ShardId, uint64_t> checksums() const {
    std::map<ShardId, uint64_t> sums;
    for (const auto& [shard, content] : shards) sums[shard] = content.checksum();
    return sums;
  }

  std::map<ShardId, FilledShard> shards;
  uint64_t lineage = 1;

 private:
  const uint32_t server_;
  const uint32_t servers_;
  const uint32_t shards_total_;
  const std::vector<v1::TableSpec> specs_;
};

}  // namespace lodestone::server
