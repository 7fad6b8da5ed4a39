// Small data files for tests, and shorthands for reading them.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/dataset.h"

namespace lodestone::worker {

inline std::string TestPath(const std::string& name) { return std::string(std::getenv("TEST_TMPDIR")) + "/" + name; }

// Writes a file and gives its path.
inline std::string WriteFile(const std::string& name, const std::string& content) {
  const std::string path = TestPath(name);
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
  return path;
}

// The path of a copy of the file: a test set may not be what is trained on.
inline std::string Copied(const std::string& path) {
  const std::string copy = path + ".copy";
  std::ofstream(copy, std::ios::binary | std::ios::trunc) << std::ifstream(path, std::ios::binary).rdbuf();
  return copy;
}

// `content` as a gz of one member.
inline std::string Packed(const std::string& content) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(deflateBound(&stream, content.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  stream.avail_in = static_cast<uInt>(content.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

inline v1::Config FilesConfig(v1::DataConfig::Format format, const std::vector<std::string>& train,
                              const std::vector<std::string>& test = {}) {
  v1::Config config;
  config.mutable_data()->set_format(format);
  for (const std::string& file : train) config.mutable_data()->add_train(file);
  for (const std::string& file : test) config.mutable_data()->add_test(file);
  return config;
}

inline absl::StatusOr<LoadedData> Load(const v1::Config& config, LabelKind labels = LabelKind::kClass,
                                       Partition partition = {}) {
  return LoadData(config, labels, partition, /*with_test=*/true, nullptr);
}

// Which of so many samples of a data set are of a partition.
inline std::vector<uint64_t> SamplesOf(const v1::Config& config, uint32_t index, uint32_t count, uint64_t samples) {
  const Partition partition{index, count, config.cluster().seed()};
  std::vector<uint64_t> indices;
  for (uint64_t i = 0; i < samples; ++i) {
    if (config.data().has_generated() ? i % count == index : partition.Has(i)) indices.push_back(i);
  }
  return indices;
}

// All samples of a data set, in order.
inline Batch ReadAll(const Dataset& dataset) {
  std::vector<uint64_t> indices(dataset.size());
  std::iota(indices.begin(), indices.end(), 0);
  Batch batch;
  dataset.Read(indices, &batch);
  return batch;
}

// Expects that loading fails with every one of `parts` in the message.
inline void ExpectError(const absl::StatusOr<LoadedData>& loaded, const std::vector<std::string>& parts) {
  ASSERT_FALSE(loaded.ok());
  for (const std::string& part : parts) {
    EXPECT_THAT(std::string(loaded.status().message()), testing::HasSubstr(part));
  }
}

}  // namespace lodestone::worker
