#include "tools/bench/step/local_training.h"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu_backend.h"
#include "kernels/cuda.h"

namespace lodestone::bench {
namespace {

using testing::HasSubstr;

constexpr size_t kBatchSize = 64;

// The losses of some steps; those of worker's parts of steps, which change nothing, come between them.
struct Losses {
  std::vector<double> steps;
  std::vector<double> gradients;
};
absl::StatusOr<Losses> Train(const char* model, int steps, kernels::Backend* backend, bool ordered) {
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<LocalTraining> training,
                             LocalTraining::Create(model, kBatchSize, "sgd", backend, ordered));
  Losses losses;
  for (int i = 0; i < steps; ++i) {
    LODESTONE_ASSIGN_OR_RETURN(const double step, training->Step());
    LODESTONE_ASSIGN_OR_RETURN(const double gradients, training->Gradients());
    LODESTONE_RETURN_IF_ERROR(training->Products());
    losses.steps.push_back(step);
    losses.gradients.push_back(gradients);
  }
  return losses;
}

constexpr const char* kModels[] = {"deepfm/32-16", "dlrm/32-16", "mlp/32-16"};

// The labels are random, so what is learned is the batches themselves, which come again and again.
TEST(LocalTraining, LearnsItsBatchesWithEveryModel) {
  for (const char* model : kModels) {
    const auto training = LocalTraining::Create(model, kBatchSize, "adagrad");
    ASSERT_TRUE(training.ok()) << training.status();
    const auto mean_loss = [&] {
      double sum = 0;
      for (int i = 0; i < 16; ++i) sum += (*training)->Step().value();
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
    // Have nothing to do with the training.
    ASSERT_TRUE((*one)->Products().ok());
    ASSERT_TRUE((*one)->Gradients().ok());
    const auto loss = (*one)->Step();
    ASSERT_TRUE(loss.ok()) << loss.status();
    ASSERT_EQ(*loss, *(*other)->Step()) << "step " << i;
  }
}

TEST(LocalTraining, AWorkersPartOfTheFirstStepHasTheStepsLossAndChangesNothing) {
  for (const char* model : kModels) {
    const auto training = LocalTraining::Create(model, kBatchSize, "adagrad");
    const auto other = LocalTraining::Create(model, kBatchSize, "adagrad");
    ASSERT_TRUE(training.ok() && other.ok());
    std::vector<double> losses;
    for (int i = 0; i < 16; ++i) losses.push_back((*training)->Gradients().value());
    for (int i = 0; i < 16; ++i) EXPECT_EQ((*training)->Gradients().value(), losses[i]) << model << " batch " << i;
    EXPECT_EQ((*other)->Step().value(), losses[0]) << model;
  }
}

// What the device computes is what the CPU does, but for rounding; so all that it needs was there in time.
TEST(LocalTraining, OnADeviceTheLossesAreThoseOfTheCpu) {
  const auto cuda = kernels::CreateCuda({});
  if (!cuda.ok()) GTEST_SKIP() << "cuda: " << cuda.status().message();
  for (const char* model : kModels) {
    constexpr int kSteps = 18;  // All 16 batches, and two again.
    const auto on_cpu = Train(model, kSteps, kernels::Cpu(), false);
    ASSERT_TRUE(on_cpu.ok()) << on_cpu.status();
    // A step passes a rounding error of some 2^-24 for each of about 50 terms on to the next; a loss is the batch's
    // sum.
    constexpr double kTolerance = kBatchSize * kSteps * 50 * 0x1p-24;
    for (const bool ordered : {false, true}) {
      const auto on_device = Train(model, kSteps, cuda->get(), ordered);
      ASSERT_TRUE(on_device.ok()) << on_device.status();
      for (int i = 0; i < kSteps; ++i) {
        EXPECT_NEAR(on_device->steps[i], on_cpu->steps[i], kTolerance) << model << " step " << i;
        EXPECT_NEAR(on_device->gradients[i], on_cpu->gradients[i], kTolerance) << model << " step " << i;
      }
      if (!ordered) continue;
      const auto again = Train(model, kSteps, cuda->get(), ordered);
      ASSERT_TRUE(again.ok()) << again.status();
      EXPECT_EQ(again->steps, on_device->steps) << model;
    }
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
