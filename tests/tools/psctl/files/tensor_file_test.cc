#include "tools/psctl/files/tensor_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/checkpoint/fake_ps.h"
#include "tests/tools/psctl/files/tensor_reader.h"

namespace lodestone::psctl {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

const std::vector<Tensor> kTensors = {{"none", TensorType::kUint64, {0}},
                                      {"mlp/0/weight", TensorType::kFloat32, {2, 3}},
                                      {"empty too", TensorType::kFloat32, {0, 4}},
                                      {"keys", TensorType::kUint64, {2}},
                                      {"signed \"keys\"", TensorType::kInt64, {1, 1}},
                                      {"last", TensorType::kFloat32, {5, 0}}};

std::vector<uint8_t> Content() {
  std::vector<uint8_t> bytes(2 * 3 * 4 + 2 * 8 + 8);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i);
  return bytes;
}

// The file, whose content is appended in pieces of `piece` bytes.
std::string Write(const std::string& name, size_t piece) {
  const std::string path = server::FreshFolder() + "/" + name;
  auto file = TensorFile::Create(path, kTensors, {{"lodestone", "about it"}});
  EXPECT_TRUE(file.ok()) << file.status();
  const std::vector<uint8_t> bytes = Content();
  for (size_t at = 0; at < bytes.size(); at += piece) {
    EXPECT_TRUE((*file)->Append(std::span(bytes).subspan(at, std::min(piece, bytes.size() - at))).ok());
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_TRUE((*file)->Finish().ok());
  return server::ReadWhole(path);
}

void ExpectAll(const ReadTensors& tensors, const std::string& f32, const std::string& u64, const std::string& i64) {
  ASSERT_EQ(tensors.size(), kTensors.size());
  size_t at = 0;
  const std::vector<uint8_t> bytes = Content();
  for (const Tensor& tensor : kTensors) {
    const ReadTensor& read = tensors.at(tensor.name);
    EXPECT_EQ(read.shape, tensor.shape) << tensor.name;
    EXPECT_EQ(read.type, tensor.type == TensorType::kFloat32 ? f32 : tensor.type == TensorType::kUint64 ? u64 : i64);
    EXPECT_EQ(read.bytes, std::string(bytes.begin() + at, bytes.begin() + at + tensor.bytes())) << tensor.name;
    at += tensor.bytes();
  }
}

TEST(TensorFile, WritesSafetensorsThatAreReadBack) {
  for (const size_t piece : {1, 7, 1000}) {
    const std::string file = Write("f.safetensors", piece);
    ExpectAll(ReadSafetensors(file), "F32", "U64", "I64");
    EXPECT_THAT(file, HasSubstr("\"__metadata__\":{\"lodestone\":\"about it\"}"));
  }
}

TEST(TensorFile, WritesNpzThatAreReadBack) {
  for (const size_t piece : {1, 7, 1000}) ExpectAll(ReadNpz(Write("f.npz", piece)), "<f4", "<u8", "<i8");
}

TEST(TensorFile, OfNoTensorsIsAFileToo) {
  for (const char* name : {"f.npz", "f.safetensors"}) {
    const std::string path = server::FreshFolder() + "/" + name;
    auto file = TensorFile::Create(path, {}, {});
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE((*file)->Finish().ok());
    EXPECT_THAT(name[2] == 'n' ? ReadNpz(server::ReadWhole(path)) : ReadSafetensors(server::ReadWhole(path)),
                IsEmpty());
  }
}

TEST(TensorFile, LeavesNothingIfItIsNotFinished) {
  const std::string dir = server::FreshFolder();
  { ASSERT_TRUE(TensorFile::Create(dir + "/f.npz", kTensors, {}).ok()); }
  EXPECT_THAT(server::FilesBelow(dir), IsEmpty());
}

// Each became a regular file once.
TEST(TensorFile, AFifoGetsSafetensorsAndNoNpz) {
  const std::string dir = server::FreshFolder();
  for (const char* name : {"/f.safetensors", "/f.npz"}) ASSERT_EQ(mkfifo((dir + name).c_str(), 0600), 0);
  const int reader = open((dir + "/f.safetensors").c_str(), O_RDONLY | O_NONBLOCK);
  const int npz_reader = open((dir + "/f.npz").c_str(), O_RDONLY | O_NONBLOCK);
  const auto file = TensorFile::Create(dir + "/f.safetensors", {}, {});
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ((*file)->Finish(), absl::OkStatus());
  std::string content(1000, 0);
  content.resize(static_cast<size_t>(std::max<ssize_t>(0, read(reader, content.data(), content.size()))));
  EXPECT_EQ(content.size(), (*file)->bytes());
  EXPECT_THAT(ReadSafetensors(content), IsEmpty());
  EXPECT_THAT(std::string(TensorFile::Create(dir + "/f.npz", {}, {}).status().message()),
              HasSubstr("f.npz: is a FIFO or a device"));
  EXPECT_THAT(server::FilesBelow(dir), IsEmpty()) << "a regular file";
  close(reader);
  close(npz_reader);
}

TEST(TensorFile, RefusesOtherNamesAndEqualTensors) {
  EXPECT_TRUE(absl::IsInvalidArgument(TensorFile::Create("/tmp/f.pt", kTensors, {}).status()));
  std::vector<Tensor> twice = {kTensors[1], kTensors[1]};
  EXPECT_THAT(std::string(TensorFile::Create("/tmp/f.npz", twice, {}).status().message()),
              HasSubstr("two tensors would be called `mlp/0/weight`"));
}

}  // namespace
}  // namespace lodestone::psctl
