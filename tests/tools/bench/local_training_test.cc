#include "tools/bench/local_training.h"

#include <cmath>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::bench {
namespace {

using testing::HasSubstr;

// The labels are random, so what is learned is the batches themselves, which come again and again.
TEST(LocalTraining, LearnsItsBatchesWithEveryModel) {
  for (const char* model : {"deepfm/32-16", "dlrm/32-16", "mlp/32-16"}) {
    constexpr size_t kBatchSize = 64;
    const auto training = LocalTraining::Create(model, kBatchSize, "adagrad");
    ASSERT_TRUE(training.ok()) << training.status();
    const auto mean_loss = [&] {
      double sum = 0;
      for (int i = 0; i < 16; ++i) sum += (*training)->Step();
      return sum / (16 * kBatchSize);
    };
    const double first = mean_loss();
    double last = first;
    for (int i = 0; i < 10; ++i) last = mean_loss();
    EXPECT_TRUE(std::isfinite(first)) << model;
    EXPECT_LT(last, 0.8 * first) << model;
  }
}

TEST(LocalTraining, GivesTheSameLossesAgain) {
  const auto one = LocalTraining::Create("deepfm/32-16", 100, "sgd");
  const auto other = LocalTraining::Create("deepfm/32-16", 100, "sgd");
  ASSERT_TRUE(one.ok() && other.ok());
  for (int i = 0; i < 20; ++i) {
    (*one)->Products();  // Has nothing to do with the training.
    ASSERT_EQ((*one)->Step(), (*other)->Step()) << "step " << i;
  }
}

TEST(LocalTraining, SaysWhatIsWrongWithARequest) {
  const auto message = [](const std::string& model, const std::string& optimizer) {
    return std::string(LocalTraining::Create(model, 8, optimizer).status().message());
  };
  EXPECT_THAT(message("deepfm", "sgd"), HasSubstr("model deepfm"));
  EXPECT_THAT(message("fm/8", "sgd"), HasSubstr("model fm/8: there are deepfm, dlrm and mlp"));
  EXPECT_THAT(message("mlp/8-0", "sgd"), HasSubstr("model mlp/8-0: 0 is no width"));
  EXPECT_THAT(message("mlp/8", "adam"), HasSubstr("optimizer adam"));
}

}  // namespace
}  // namespace lodestone::bench
