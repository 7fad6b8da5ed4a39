// What the emulated runtime finds of mistakes that a device would show: work that is not ordered, buffers that are used
// too early, and pointers into the wrong address space. See cuda_runtime.h.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda.h"
#include "kernels/scratch_array.h"

namespace lodestone::kernels {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsNan;

constexpr size_t kFloats = 4;
constexpr size_t kBytes = kFloats * sizeof(float);

class EmulatedStreamsTest : public testing::Test {
 protected:
  EmulatedStreamsTest() : backend_(*CreateCuda({})) {}
  ~EmulatedStreamsTest() override { backend_->Finish().IgnoreError(); }

  // Memory of exactly four floats.
  struct Deleter {
    Backend* backend;
    Memory memory;
    void operator()(float* data) const {
      if (memory == Memory::kHost) return backend->FreeHost(data);
      backend->Free(data);
    }
  };
  using Floats = std::unique_ptr<float, Deleter>;
  Floats Device() {
    return Floats(static_cast<float*>(backend_->Allocate(kBytes)), {backend_.get(), Memory::kBackend});
  }
  // With all values.
  Floats Device(float value) {
    Floats floats = Device();
    backend_->Fill(kFloats, value, floats.get());
    return floats;
  }
  Floats Pinned(float value) {
    Floats floats(static_cast<float*>(backend_->AllocateHost(kBytes)), {backend_.get(), Memory::kHost});
    std::fill_n(floats.get(), kFloats, value);
    return floats;
  }

  // The values of device memory once all that was queued to compute has run.
  std::vector<float> Finished(const Floats& device) {
    std::vector<float> values(kFloats);
    backend_->CopyOut(kBytes, device.get(), values.data());
    EXPECT_EQ(backend_->Finish(), absl::OkStatus());
    return values;
  }
  std::string Failure() { return std::string(backend_->Finish().message()); }

  std::unique_ptr<Backend> backend_;
};
using EmulatedStreamsDeathTest = EmulatedStreamsTest;

TEST_F(EmulatedStreamsTest, ACopyThatIsNotAwaitedHasNotArrived) {
  const Floats host = Pinned(1), device = Device(0);
  EXPECT_THAT(Finished(device), Each(0));
  backend_->CopyIn(Queue::kCopy, kBytes, host.get(), device.get());
  EXPECT_THAT(Finished(device), Each(IsNan()));
}

TEST_F(EmulatedStreamsTest, ACopyThatIsAwaitedHasArrived) {
  const Floats host = Pinned(1), device = Device();
  const uint32_t mark = backend_->NewMark();
  backend_->CopyIn(Queue::kCopy, kBytes, host.get(), device.get());
  backend_->SetMark(Queue::kCopy, mark);
  backend_->AwaitMark(mark);
  EXPECT_THAT(Finished(device), Each(1));
}

TEST_F(EmulatedStreamsTest, AMarkStandsForWhatWasBeforeItAtItsNewestPlace) {
  const Floats host = Pinned(1), first = Device(), second = Device();
  const uint32_t mark = backend_->NewMark();
  backend_->AwaitMark(mark);  // It has no place yet.
  backend_->CopyIn(Queue::kCopy, kBytes, host.get(), first.get());
  backend_->SetMark(Queue::kCopy, mark);
  backend_->AwaitMark(mark);
  backend_->CopyIn(Queue::kCopy, kBytes, host.get(), second.get());
  backend_->SetMark(Queue::kCopy, mark);
  EXPECT_THAT(Finished(first), Each(1));
  EXPECT_THAT(Finished(second), Each(IsNan())) << "the mark was awaited at its place before";
  backend_->AwaitMark(mark);
  EXPECT_THAT(Finished(second), Each(1));
}

TEST_F(EmulatedStreamsTest, APinnedBufferThatIsChangedTooEarlyIsCopiedAsItIsThen) {
  const Floats host = Pinned(1), device = Device();
  const uint32_t mark = backend_->NewMark();
  backend_->CopyIn(Queue::kCopy, kBytes, host.get(), device.get());
  backend_->SetMark(Queue::kCopy, mark);
  std::fill_n(host.get(), kFloats, 2.0f);
  backend_->AwaitMark(mark);
  EXPECT_THAT(Finished(device), Each(2));
}

TEST_F(EmulatedStreamsTest, WhatIsNotPinnedIsReadWithinTheCall) {
  const Floats device = Device();
  std::vector<float> host = {1, 2, 3, 4};
  backend_->CopyIn(Queue::kCompute, kBytes, host.data(), device.get());
  host.assign(kFloats, 5);
  EXPECT_THAT(Finished(device), ElementsAre(1, 2, 3, 4));
}

TEST_F(EmulatedStreamsTest, ACopyOverWhatIsStillToBeReadDestroysIt) {
  const Floats host = Pinned(1), device = Device(3), result = Device();
  EXPECT_THAT(Finished(device), Each(3));
  backend_->Copy(kFloats, device.get(), result.get());
  backend_->CopyIn(Queue::kCopy, kBytes, host.get(), device.get());
  EXPECT_THAT(Finished(result), Each(IsNan()));
}

TEST_F(EmulatedStreamsTest, ACopyInTheSameQueueIsInOrder) {
  const Floats host = Pinned(1), device = Device(3), result = Device();
  backend_->Copy(kFloats, device.get(), result.get());
  backend_->CopyIn(Queue::kCompute, kBytes, host.get(), device.get());
  EXPECT_THAT(Finished(result), Each(3));
  EXPECT_THAT(Finished(device), Each(1));
}

TEST_F(EmulatedStreamsTest, ResultsThatAreReadBeforeFinishAreNotThere) {
  const Floats host = Pinned(7), device = Device(1);
  backend_->CopyOut(kBytes, device.get(), host.get());
  EXPECT_THAT(std::vector<float>(host.get(), host.get() + kFloats), Each(IsNan()));
  EXPECT_EQ(backend_->Finish(), absl::OkStatus());
  EXPECT_THAT(std::vector<float>(host.get(), host.get() + kFloats), Each(1));
}

TEST_F(EmulatedStreamsTest, ResultsMayReplaceWhatWasCopiedFrom) {
  const Floats host = Pinned(1), device = Device();
  backend_->CopyIn(Queue::kCompute, kBytes, host.get(), device.get());
  backend_->Axpy(kFloats, 1, device.get(), device.get());
  backend_->CopyOut(kBytes, device.get(), host.get());
  EXPECT_EQ(backend_->Finish(), absl::OkStatus());
  EXPECT_THAT(std::vector<float>(host.get(), host.get() + kFloats), Each(2));
}

TEST_F(EmulatedStreamsTest, AProductRunsInItsQueueToo) {
  const Floats host = Pinned(3), a = Device(), b = Device(2), c = Device();
  backend_->CopyIn(Queue::kCompute, kBytes, host.get(), a.get());
  backend_->MatMul(false, false, 2, 2, 2, 1, a.get(), b.get(), 0, c.get());
  std::fill_n(host.get(), kFloats, 4.0f);  // Too early: the copy has not run.
  EXPECT_THAT(Finished(c), Each(16));
}

TEST_F(EmulatedStreamsTest, MemoryIsGivenBackWhenWhatUsesItHasRun) {
  const Floats result = Device();
  {
    const Floats host = Pinned(1), device = Device();
    backend_->CopyIn(Queue::kCompute, kBytes, host.get(), device.get());
    backend_->Copy(kFloats, device.get(), result.get());
  }
  EXPECT_THAT(Finished(result), Each(1));
}

TEST_F(EmulatedStreamsTest, NothingThatWasQueuedRunsAfterAFaultOfTheDevice) {
  std::vector<float> host(kFloats, 1);
  const Floats device = Device(2);
  backend_->CopyOut(kBytes, device.get(), host.data());
  emulated::FailFrom(1, cudaErrorIllegalAddress);
  EXPECT_THAT(Failure(), HasSubstr("illegal memory access"));
  emulated::FailFrom(0, cudaSuccess);
  EXPECT_THAT(Failure(), HasSubstr("illegal memory access"));
  EXPECT_THAT(host, Each(IsNan()));
}

TEST_F(EmulatedStreamsTest, ACopyFromTheHostThatIsGivenDeviceMemoryFails) {
  const Floats from = Device(1), to = Device();
  backend_->CopyIn(Queue::kCompute, kBytes, from.get(), to.get());
  EXPECT_THAT(Failure(), HasSubstr("copying to the device of 16 bytes: invalid argument"));
}

TEST_F(EmulatedStreamsTest, ACopyToTheDeviceThatIsGivenHostMemoryFails) {
  const Floats from = Pinned(1), to = Pinned(1);
  backend_->CopyIn(Queue::kCopy, kBytes, from.get(), to.get());
  EXPECT_THAT(Failure(), HasSubstr("copying to the device of 16 bytes: invalid argument"));
}

TEST_F(EmulatedStreamsTest, ACopyFromTheDeviceThatIsGivenHostMemoryFails) {
  const std::vector<float> from(kFloats);
  const Floats to = Pinned(1);
  backend_->CopyOut(kBytes, from.data(), to.get());
  EXPECT_THAT(Failure(), HasSubstr("copying from the device of 16 bytes: invalid argument"));
}

TEST_F(EmulatedStreamsTest, ACopyBeyondItsMemoryFails) {
  const Floats device = Device(1), neighbour = Device(1);
  std::vector<float> host(kFloats + 1);
  backend_->CopyOut(kBytes + sizeof(float), device.get(), host.data());
  EXPECT_THAT(Failure(), HasSubstr("copying from the device of 20 bytes: invalid argument"));
}

TEST_F(EmulatedStreamsTest, ACopyToWhereItReadsFails) {
  const Floats device = Device(1);
  backend_->Copy(kFloats - 1, device.get(), device.get() + 1);
  EXPECT_THAT(Failure(), HasSubstr("Copy [3]: invalid argument"));
}

TEST_F(EmulatedStreamsDeathTest, AHostThatReadsDeviceMemoryDies) {
  const Floats device = Device(1);
  EXPECT_EQ(backend_->Finish(), absl::OkStatus());
  EXPECT_DEATH(std::printf("%f", *device), "the host touches device memory");
  EXPECT_DEATH(*device = 1, "the host touches device memory");
}

TEST_F(EmulatedStreamsDeathTest, AKernelThatIsGivenHostMemoryDies) {
  const Floats device = Device(1), pinned = Pinned(1);
  const std::vector<float> pageable(kFloats);
  EXPECT_DEATH(backend_->Fill(kFloats, 1, pinned.get()), "no device memory but pinned host memory");
  EXPECT_DEATH(backend_->Axpy(kFloats, 1, pageable.data(), device.get()),
               "a kernel is started with .*no device memory");
  EXPECT_DEATH(backend_->MatMul(false, false, 2, 2, 2, 1, pageable.data(), device.get(), 0, device.get()),
               "16 bytes at .* are not, or not all, device memory");
}

TEST_F(EmulatedStreamsDeathTest, AKernelThatIsGivenMemoryThatWasGivenBackDies) {
  auto* const memory = static_cast<float*>(backend_->Allocate(kBytes));
  backend_->Free(memory);
  EXPECT_DEATH(backend_->Fill(kFloats, 1, memory), "a kernel is started with .*no device memory");
}

TEST_F(EmulatedStreamsDeathTest, AKernelThatReadsFarBeyondDeviceMemoryDies) {
  const Floats device = Device(1);
  EXPECT_DEATH(
      {
        backend_->CopyColumns(1, 1, device.get(), /*stride=*/size_t{1} << 30, /*col=*/size_t{1} << 29, device.get());
        backend_->Finish().IgnoreError();
      },
      "a kernel touches .*, which is not device memory");
}

// Tests of this kind run first, so that there is no other backend yet.
TEST_F(EmulatedStreamsDeathTest, ABackendThatEndsBeforeItsMemoryDies) {
  EXPECT_DEATH(
      {
        backend_->Allocate(kBytes);
        backend_.reset();
      },
      "the last stream ends before memory is given back");
  EXPECT_DEATH(
      {
        backend_->AllocateHost(kBytes);
        backend_.reset();
      },
      "the last stream ends before memory is given back");
}

// AddressSanitizer sees it at once, other builds when the memory is given back.
TEST_F(EmulatedStreamsDeathTest, AKernelThatWritesBehindItsMemoryDies) {
  EXPECT_DEATH(
      {
        Floats device = Device();
        backend_->Fill(kFloats + 1, 1, device.get());
        device.reset();
      },
      "written behind device memory of 16 bytes|use-after-poison");
}

}  // namespace
}  // namespace lodestone::kernels
