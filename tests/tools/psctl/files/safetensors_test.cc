#include "tools/psctl/files/safetensors.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/checkpoint/fake_ps.h"

namespace lodestone::psctl {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// A file with this header and some content.
std::string Write(const std::string& header, const std::string& content) {
  const std::string path = server::FreshFolder() + "/f";
  const uint64_t size = header.size();
  server::WriteWhole(path, std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + header + content);
  return path;
}

std::string Error(const std::string& path) {
  const absl::Status status = Safetensors::Open(path).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(path));
  return std::string(status.message());
}
std::string Error(const std::string& header, const std::string& content) { return Error(Write(header, content)); }

constexpr char kGood[] =
    R"({"a":{"dtype":"F32","shape":[2,1],"data_offsets":[1,9]},"none":{"dtype":"BF16","shape":[0],"data_offsets":[3,3]},)"
    R"("__metadata__":{"lodestone":"about it","format":"pt"}} )";

TEST(Safetensors, FindsTensorsWhereverTheyLie) {
  const auto file = Safetensors::Open(Write(kGood, "xabcdefgh"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->metadata("lodestone"), "about it");
  ASSERT_EQ((*file)->tensors().size(), 2u);
  const Safetensors::View& a = (*file)->tensors().at("a");
  EXPECT_EQ(a.type, "F32");
  EXPECT_THAT(a.shape, ElementsAre(2, 1));
  EXPECT_EQ(std::string(a.bytes.begin(), a.bytes.end()), "abcdefgh");
}

TEST(Safetensors, RefusesWhatIsNone) {
  EXPECT_TRUE(Safetensors::Open(Write("{}", "")).ok());
  const std::string path = server::FreshFolder() + "/f";
  server::WriteWhole(path, "short");
  EXPECT_THAT(Error(path), HasSubstr("too short"));
  server::WriteWhole(path, std::string(100, '\x7f'));
  EXPECT_THAT(Error(path), HasSubstr("its header would have"));
  EXPECT_THAT(Error("[]", ""), HasSubstr("no JSON object"));
  EXPECT_THAT(Error("{\"a\":", ""), HasSubstr("no JSON object"));
  EXPECT_THAT(Error(R"({"a":5})", ""), AllOf(HasSubstr("tensor `a`"), HasSubstr("has no dtype")));
  const auto entry = [](const std::string& type, const std::string& shape, const std::string& offsets) {
    return absl::StrCat(R"({"a":{"dtype":")", type, R"(","shape":[)", shape, R"(],"data_offsets":[)", offsets, "]}}");
  };
  const std::string content(8, 'x');
  EXPECT_TRUE(Safetensors::Open(Write(entry("F32", "2", "0,8"), content)).ok());
  EXPECT_THAT(Error(entry("F32", "2", "0,9"), content), HasSubstr("lies at 0 to 9 of 8 bytes"));
  EXPECT_THAT(Error(entry("F32", "2", "8,0"), content), HasSubstr("lies at 8 to 0"));
  EXPECT_THAT(Error(entry("F32", "2", "0"), content), HasSubstr("has no dtype"));
  EXPECT_THAT(Error(entry("F32", "-2", "0,8"), content), HasSubstr("has no dtype"));
  EXPECT_THAT(Error(entry("F32", "1.5", "0,8"), content), HasSubstr("has no dtype"));
  EXPECT_THAT(Error(entry("F32", "3", "0,8"), content), HasSubstr("its shape needs 12"));
  EXPECT_THAT(Error(entry("F8", "8", "0,8"), content), HasSubstr("type F8"));
  EXPECT_THAT(Error(entry("F32", "4294967296,4294967296,4294967296", "0,8"), content), HasSubstr("impossible shape"));
}

TEST(Safetensors, OfAnyLengthAndWithAnyBitFlippedItIsReadOrRefused) {
  const std::string path = Write(kGood, "xabcdefgh");
  const std::string content = server::ReadWhole(path);
  for (size_t at = 0; at < content.size(); ++at) {
    server::WriteWhole(path, content.substr(0, at));
    EXPECT_FALSE(Safetensors::Open(path).ok()) << at;
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = content;
      changed[at] = static_cast<char>(changed[at] ^ 1 << bit);
      server::WriteWhole(path, changed);
      const auto file = Safetensors::Open(path);
      if (!file.ok()) continue;
      for (const auto& [name, view] : (*file)->tensors()) EXPECT_LE(view.bytes.size(), 9u);
    }
  }
}

}  // namespace
}  // namespace lodestone::psctl
