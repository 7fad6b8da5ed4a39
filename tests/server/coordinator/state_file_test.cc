#include "server/coordinator/state_file.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

using ::testing::HasSubstr;

class StateFileTest : public ::testing::Test {
 protected:
  StateFileTest() {
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    path_ = folder_ + "/coordinator";
    state_.set_format(1);
    state_.set_cluster("test");
    state_.set_epoch(7);
    state_.add_places()->set_peer("host:1");
  }

  std::string Content() const {
    std::ifstream stream(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  void SetContent(const std::string& content) { std::ofstream(path_, std::ios::binary) << content; }

  std::string folder_ = std::string(std::getenv("TEST_TMPDIR")) + "/state_XXXXXX";
  std::string path_;
  v1::CoordinatorState state_;
};

TEST_F(StateFileTest, GivesBackWhatWasWrittenLast) {
  ASSERT_TRUE(WriteCoordinatorState(path_, state_).ok());
  state_.set_epoch(8);
  ASSERT_TRUE(WriteCoordinatorState(path_, state_).ok());
  const auto read = ReadCoordinatorState(path_);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_TRUE(read->has_value());
  EXPECT_EQ((*read)->SerializeAsString(), state_.SerializeAsString());
}

TEST_F(StateFileTest, AFileThatIsMissingIsNoError) {
  const auto read = ReadCoordinatorState(path_);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_FALSE(read->has_value());
}

TEST_F(StateFileTest, EveryDamagedByteAndEveryMissingEndIsToldWithThePath) {
  ASSERT_TRUE(WriteCoordinatorState(path_, state_).ok());
  const std::string content = Content();
  for (size_t i = 0; i < content.size(); ++i) {
    std::string damaged = content;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    for (const std::string& wrong : {damaged, content.substr(0, i)}) {
      SetContent(wrong);
      const absl::Status status = ReadCoordinatorState(path_).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << "byte " << i << ": " << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(path_));
    }
  }
  SetContent(content + content);
  EXPECT_THAT(std::string(ReadCoordinatorState(path_).status().message()), HasSubstr("more than the one record"));
}

TEST_F(StateFileTest, AFolderThatIsGoneIsAnErrorAndLeavesNothing) {
  std::filesystem::remove_all(folder_);
  EXPECT_THAT(std::string(WriteCoordinatorState(path_, state_).message()), HasSubstr(path_));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

}  // namespace
}  // namespace lodestone::server
