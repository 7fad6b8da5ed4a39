#include "tools/psctl/verbs/predict.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "common/io/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/checkpoint.pb.h"
#include "tests/server/checkpoint/fake_ps.h"
#include "tests/worker/data/test_files.h"
#include "tools/psctl/files/model_metadata.h"
#include "tools/psctl/files/tensor_file.h"
#include "worker/data/dataset.h"
#include "worker/model/model.h"

namespace lodestone::psctl {
namespace {

// A file of a linear model of two numbers: x + 10 y.
std::string ModelOfNumbers() {
  v1::Config config =
      worker::FilesConfig(v1::DataConfig::CSV, {worker::WriteFile("train.csv", "x,y,z\n1,2,3\n2,4,4\n")});
  config.mutable_data()->mutable_csv()->set_label("z");
  config.mutable_data()->mutable_csv()->add_numeric("x");
  config.mutable_data()->mutable_csv()->add_numeric("y");
  config.mutable_model()->set_type(v1::ModelConfig::LINEAR);
  config.mutable_model()->set_loss(v1::ModelConfig::SQUARED);
  const auto data = worker::LoadData(config, worker::LabelKind::kNumber, {}, false, nullptr);
  EXPECT_TRUE(data.ok()) << data.status();
  const auto model = worker::Model::Create(config, data->schema);
  EXPECT_TRUE(model.ok()) << model.status();
  v1::ServerManifest cluster;
  std::vector<Tensor> tensors;
  std::vector<float> values;
  for (const v1::TableSpec& table : (*model)->tables()) {
    *cluster.add_tables() = table;
    Tensor& tensor = tensors.emplace_back();
    tensor.name = table.name();
    tensor.shape = {table.dense().dims().begin(), table.dense().dims().end()};
    const uint64_t n = tensor.bytes() / sizeof(float);
    const std::vector<float> of_table = n == 2 ? std::vector<float>{1, 10} : std::vector<float>(n, 0);
    values.insert(values.end(), of_table.begin(), of_table.end());
  }
  const std::string path = server::FreshFolder() + "/model.safetensors";
  const auto file = TensorFile::Create(path, tensors, *MetadataOf(cluster));
  EXPECT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->Append({reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)}).ok());
  EXPECT_TRUE((*file)->Finish().ok());
  return path;
}

// Standard output is a file while this lives.
class OutputTo {
 public:
  OutputTo(const std::string& path, int flags) {
    std::fflush(stdout);
    former_ = dup(STDOUT_FILENO);
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | flags, 0600);
    EXPECT_EQ(dup2(fd, STDOUT_FILENO), STDOUT_FILENO);
    close(fd);
  }
  ~OutputTo() {
    std::fflush(stdout);
    dup2(former_, STDOUT_FILENO);
    close(former_);
  }

 private:
  int former_ = -1;
};

// As a shell has it, `{ psctl predict …; psctl predict …; } > FILE` and `>> FILE`: the second once overwrote what the
// file held, from its beginning.
TEST(Predict, ToStandardOutputItGoesOnWhereThatStands) {
  PredictOptions options;
  options.model.model = ModelOfNumbers();
  options.files = {worker::WriteFile("new.csv", "x,y\n1,2\n3,4\n")};
  options.out = "-";
  const std::string path = server::FreshFolder() + "/all.csv";
  const std::string once = "row,value\n0,21\n1,43\n";
  {
    const OutputTo file(path, 0);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(*PredictFiles(options), 2u);
  }
  EXPECT_EQ(server::ReadWhole(path), once + once);
  {
    const OutputTo file(path, O_APPEND);
    EXPECT_EQ(*PredictFiles(options), 2u);
  }
  EXPECT_EQ(server::ReadWhole(path), once + once + once);
}

TEST(Predict, AFileAppearsOnceItIsWholeAndALinkToItStays) {
  PredictOptions options;
  options.model.model = ModelOfNumbers();
  options.files = {worker::WriteFile("some.csv", "x,y\n1,2\n3,four\n")};
  const std::string folder = server::FreshFolder();
  options.out = folder + "/link.csv";
  ASSERT_EQ(symlink("scores.csv", options.out.c_str()), 0);
  EXPECT_FALSE(PredictFiles(options).ok());
  EXPECT_THAT(*ListFolder(folder), testing::ElementsAre("link.csv"));
  worker::WriteFile("some.csv", "x,y\n1,2\n");
  EXPECT_EQ(*PredictFiles(options), 1u);
  EXPECT_EQ(server::ReadWhole(folder + "/scores.csv"), "row,value\n0,21\n");
  EXPECT_THAT(*ListFolder(folder), testing::ElementsAre("link.csv", "scores.csv"));
}

}  // namespace
}  // namespace lodestone::psctl
