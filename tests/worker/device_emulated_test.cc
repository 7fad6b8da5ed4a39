// Which of several CUDA devices a worker takes, and what it says where it can take none, on the emulated runtime.
#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/telemetry/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "worker/device.h"

namespace lodestone::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

class EmulatedDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    SetLogSink(
        [this](LogLevel level, const std::string&, const std::string& text) { lines_.emplace_back(level, text); });
  }
  void TearDown() override {
    SetLogSink(nullptr);
    emulated::SetDevices(1, 9, 0);
  }

  // The name of what computes for the worker with this index.
  static std::string Computes(const std::string& device, uint32_t index) {
    v1::WorkerConfig config;
    config.set_device(device);
    const auto backend = OpenDevice(config, index);
    if (!backend.ok()) return backend.status().ToString();
    return *backend == nullptr ? "cpu" : (*backend)->name();
  }

  std::vector<std::pair<LogLevel, std::string>> lines_;
};

TEST_F(EmulatedDeviceTest, WorkersOfOneMachineShareItsDevices) {
  emulated::SetDevices(2, 9, 0);
  for (const char* device : {"cuda", "auto"}) {
    EXPECT_EQ(Computes(device, 0), "cuda:0 (emulated)") << device;
    EXPECT_EQ(Computes(device, 1), "cuda:1 (emulated)") << device;
    EXPECT_EQ(Computes(device, 2), "cuda:0 (emulated)") << device;
    EXPECT_EQ(Computes(device, 4'294'967'295), "cuda:1 (emulated)") << device;
  }
  EXPECT_EQ(Computes("cuda:0", 1), "cuda:0 (emulated)") << "the one that was named";
  EXPECT_EQ(Computes("cpu", 1), "cpu");
}

TEST_F(EmulatedDeviceTest, AutoWarnsOfADeviceThatItCannotUse) {
  emulated::SetDevices(2, 3, 7);
  EXPECT_EQ(Computes("auto", 1), "cpu");
  EXPECT_THAT(lines_, ElementsAre(Pair(LogLevel::WARN, HasSubstr("cuda:1 (emulated) has compute capability 3.7"))));
  EXPECT_THAT(Computes("cuda", 1),
              HasSubstr("worker.device is cuda, but cuda:1 (emulated) has compute capability 3.7"));
}

TEST_F(EmulatedDeviceTest, AutoTakesTheCpuWithoutAWarningWhereThereIsNoDevice) {
  emulated::SetDevices(0, 9, 0);
  EXPECT_EQ(Computes("auto", 1), "cpu");
  EXPECT_THAT(lines_, ElementsAre(Pair(LogLevel::INFO, HasSubstr("the CUDA driver finds no device"))));
}

}  // namespace
}  // namespace lodestone::worker
