#include "worker/device.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda.h"

namespace lodestone::worker {
namespace {

using testing::HasSubstr;

v1::WorkerConfig Asking(const std::string& device) {
  v1::WorkerConfig config;
  config.set_device(device);
  return config;
}

TEST(Device, TheCpuNeedsNoBackendOfItsOwn) {
  const auto backend = OpenDevice(Asking("cpu"), 0);
  ASSERT_TRUE(backend.ok()) << backend.status();
  EXPECT_EQ(*backend, nullptr);
  EXPECT_EQ(*OpenDevice(v1::WorkerConfig(), 0), nullptr) << "nothing asked for";
}

TEST(Device, AutoTakesWhatIsThere) {
  const auto backend = OpenDevice(Asking("auto"), 0);
  ASSERT_TRUE(backend.ok()) << backend.status();
  EXPECT_EQ(*backend != nullptr, kernels::CreateCuda({}).ok());
}

TEST(Device, ANameOfNothingIsRefused) {
  for (const char* name : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "CUDA"}) {
    const auto backend = OpenDevice(Asking(name), 0);
    ASSERT_EQ(backend.status().code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(backend.status().message()), HasSubstr("is none of auto, cpu, cuda and cuda:N")) << name;
  }
}

TEST(Device, ADeviceThatIsNotThereIsRefusedWithTheReason) {
  const auto backend = OpenDevice(Asking("cuda:1000"), 0);
  ASSERT_EQ(backend.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(backend.status().message()), HasSubstr("worker.device is cuda:1000, but "));
  const auto devices = kernels::CudaDevices();
  EXPECT_THAT(std::string(backend.status().message()),
              HasSubstr(devices.ok() ? "there is no CUDA device 1000" : std::string(devices.status().message())));
}

TEST(Device, ALibraryThatIsNotThereIsNamed) {
  if (const auto devices = kernels::CudaDevices(); !devices.ok())
    GTEST_SKIP() << "cuda: " << devices.status().message();
  v1::WorkerConfig config = Asking("cuda");
  config.set_cublas("/nowhere/libcublas.so");
  const auto backend = OpenDevice(config, 0);
  ASSERT_EQ(backend.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(backend.status().message()), HasSubstr("Looked for: /nowhere/libcublas.so"));
}

}  // namespace
}  // namespace lodestone::worker
