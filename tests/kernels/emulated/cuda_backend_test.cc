// What the CUDA backend does when calls fail, on the emulated runtime, which fails when it is told to.
#include <cuda_runtime.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda.h"
#include "kernels/scratch_array.h"

namespace lodestone::kernels {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class CudaBackendTest : public testing::Test {
 protected:
  void SetUp() override {
    auto backend = CreateCuda({});
    ASSERT_TRUE(backend.ok()) << backend.status();
    backend_ = *std::move(backend);
  }
  void TearDown() override {
    emulated::FailFrom(0, cudaSuccess);
    emulated::SetDevices(1, 9, 0);
  }

  std::unique_ptr<Backend> backend_;
};

TEST_F(CudaBackendTest, NamesItsDevice) {
  EXPECT_EQ(backend_->name(), "cuda:0 (emulated)");
  EXPECT_FALSE(backend_->on_host());
}

TEST_F(CudaBackendTest, ADeviceThatIsNotThereIsNotFound) {
  const auto backend = CreateCuda({.device = 3});
  EXPECT_EQ(backend.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(backend.status().message()), HasSubstr("there is no CUDA device 3: there is 1"));
}

TEST_F(CudaBackendTest, ADeviceThatThereIsNoCodeForIsRefusedAtOnce) {
  emulated::SetDevices(2, 3, 7);
  const auto old = CreateCuda({.device = 1});
  EXPECT_EQ(old.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(std::string(old.status().message()),
            "cuda:1 (emulated) has compute capability 3.7; this program has code for 7.5 and later");
  emulated::SetDevices(1, 7, 0);
  EXPECT_FALSE(CreateCuda({}).ok());
  for (const auto& [major, minor] : {std::pair(7, 5), {8, 6}, {12, 1}}) {
    emulated::SetDevices(1, major, minor);
    EXPECT_TRUE(CreateCuda({}).ok()) << major << "." << minor;
  }
}

TEST_F(CudaBackendTest, SeveralDevicesAreCountedAndNoneIsNotFound) {
  emulated::SetDevices(2, 7, 5);
  EXPECT_EQ(*CudaDevices(), 2);
  const auto second = CreateCuda({.device = 1});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ((*second)->name(), "cuda:1 (emulated)");
  emulated::SetDevices(0, 7, 5);
  EXPECT_THAT(std::string(CudaDevices().status().message()), HasSubstr("the CUDA driver finds no device"));
}

TEST_F(CudaBackendTest, AFailedOperationIsNamedWithItsShapeAndDevice) {
  ScratchArray<float> x(backend_.get());
  x.Resize(6);
  emulated::FailFrom(1, cudaErrorInvalidConfiguration);
  backend_->AddBias(2, 3, x.data(), x.data());
  emulated::FailFrom(0, cudaSuccess);
  const absl::Status status = backend_->Finish();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("cuda:0 (emulated)"), HasSubstr("Activate [2, 3]"), HasSubstr("invalid configuration")));
}

TEST_F(CudaBackendTest, NothingRunsAfterAFailureAndTheFirstOneStays) {
  ScratchArray<float> x(backend_.get());
  x.Resize(4);
  backend_->Fill(4, 1.0f, x.data());
  emulated::FailFrom(1, cudaErrorInvalidConfiguration);
  backend_->ActivateBackward(Activation::kRelu, 4, x.data(), x.data());
  emulated::FailFrom(0, cudaSuccess);
  backend_->Fill(4, 2.0f, x.data());
  std::vector<float> host(4, -1.0f);
  backend_->CopyOut(16, x.data(), host.data());
  EXPECT_THAT(std::string(backend_->Finish().message()), HasSubstr("ActivateBackward [4]"));
  EXPECT_FALSE(backend_->Finish().ok()) << "a failure does not pass";
  EXPECT_EQ(host, std::vector<float>(4, -1.0f)) << "a copy after the failure";
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(host.data(), x.data(), 16, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(host, std::vector<float>(4, 1.0f)) << "an operation after the failure";
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(CudaBackendTest, WhatGoesWrongWhileKernelsRunShowsAtFinish) {
  ScratchArray<float> x(backend_.get());
  x.Resize(4);
  backend_->Fill(4, 1.0f, x.data());
  emulated::FailFrom(1, cudaErrorIllegalAddress);
  EXPECT_THAT(std::string(backend_->Finish().message()),
              AllOf(HasSubstr("while operations up to Fill ran"), HasSubstr("illegal memory access")));
}

TEST_F(CudaBackendTest, MemoryThatIsNotThereEndsInAStatusAndNoOperationTouchesIt) {
  emulated::FailFrom(1, cudaErrorMemoryAllocation);
  ScratchArray<float> x(backend_.get());
  EXPECT_EQ(x.Resize(1000), nullptr);
  emulated::FailFrom(0, cudaSuccess);
  backend_->Fill(1000, 1.0f, x.data());
  backend_->MatMul(false, false, 10, 10, 10, 1, x.data(), x.data(), 0, x.data());
  backend_->ColumnSums(100, 10, x.data(), x.data());
  double loss = 0;
  backend_->SoftmaxLoss(10, 10, x.data(), x.data(), nullptr, nullptr, nullptr, &loss);
  EXPECT_THAT(std::string(backend_->Finish().message()),
              AllOf(HasSubstr("taking device memory of 4000 bytes"), HasSubstr("out of memory")));
}

// Every call in turn is the first that fails: each ends in a status, none in a crash.
TEST_F(CudaBackendTest, AFailureAnywhereEndsInAStatus) {
  bool succeeded = false;
  for (int call = 1; !succeeded; ++call) {
    ASSERT_LT(call, 1000);
    emulated::FailFrom(call, cudaErrorIllegalAddress);
    auto backend = CreateCuda({.precision = Precision::kBf16});
    absl::Status status = backend.status();
    if (backend.ok()) {
      {
        ScratchArray<float> x(backend->get()), host(backend->get(), Memory::kHost);
        ScratchArray<double> loss(backend->get());
        x.Resize(64 * 64);
        host.Resize(64 * 64);
        loss.Resize(1);
        const uint32_t mark = (*backend)->NewMark();
        (*backend)->CopyIn(Queue::kCopy, 64 * 64 * sizeof(float), host.data(), x.data());
        (*backend)->SetMark(Queue::kCopy, mark);
        (*backend)->AwaitMark(mark);
        (*backend)->MatMul(false, true, 64, 64, 64, 1, x.data(), x.data(), 0, x.data());
        (*backend)->ColumnSums(1024, 4, x.data(), x.data());
        (*backend)->SoftmaxLoss(64, 64, x.data(), x.data(), nullptr, x.data(), nullptr, loss.data());
        (*backend)->CopyOut(64 * 64 * sizeof(float), x.data(), host.data());
        status = (*backend)->Finish();
      }
    }
    emulated::FailFrom(0, cudaSuccess);
    succeeded = status.ok();
    EXPECT_TRUE(succeeded || absl::IsInternal(status)) << call << ": " << status;
  }
}

TEST_F(CudaBackendTest, BuffersGrowAndTellTheirSize) {
  ScratchArray<float> x(backend_.get());
  EXPECT_EQ(x.Resize(0), nullptr);
  float* const first = x.Resize(100);
  EXPECT_EQ(x.Resize(50), first);
  EXPECT_EQ(x.size(), 50u);
  EXPECT_NE(x.Resize(1000), nullptr);
  EXPECT_EQ(x.size(), 1000u);
  const ScratchArray<float> moved = std::move(x);
  EXPECT_EQ(moved.size(), 1000u);
  EXPECT_TRUE(backend_->Finish().ok());
}

}  // namespace
}  // namespace lodestone::kernels
