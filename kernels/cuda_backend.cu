#include <glob.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/cuda_backend.h"
#include "kernels/cuda_launch-inl.h"

namespace lodestone::kernels {
namespace {

struct FillBody {
  float value;
  float* y;
  template <typename Index>
  __device__ void operator()(Index i) const {
    y[i] = value;
  }
};

std::string ErrorText(cudaError_t error) {
  return absl::StrCat(cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
}

// The compute capabilities that there is code for (tools/bazel/cuda.bzl), as 100 * major + 10 * minor, the least first.
constexpr int kCapabilities[] = {__CUDA_ARCH_LIST__};

std::string CapabilityText(int capability) { return absl::StrCat(capability / 100, ".", capability % 100 / 10); }

// How many devices the kernel's driver has, whether this process may see them or not.
size_t KernelDevices() {
  glob_t found = {};
  const size_t count = glob("/proc/driver/nvidia/gpus/*", 0, nullptr, &found) == 0 ? found.gl_pathc : 0;
  globfree(&found);
  return count;
}

}  // namespace

absl::StatusOr<int> CudaDevices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return count;
  cudaGetLastError();  // Forgets it.
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) {
    return absl::NotFoundError("there is no CUDA driver here (libcuda.so.1)");
  }
  const int built = CUDART_VERSION;
  if (driver < built && error == cudaErrorInsufficientDriver) {
    return absl::FailedPreconditionError(absl::StrCat("the CUDA driver is for CUDA ", driver / 1000, ".",
                                                      driver % 1000 / 10, ", this program needs one for ", built / 1000,
                                                      ".", built % 1000 / 10));
  }
  if (error != cudaSuccess && error != cudaErrorNoDevice) {
    return absl::FailedPreconditionError(absl::StrCat("the CUDA driver does not start: ", ErrorText(error)));
  }
  if (const size_t hidden = KernelDevices(); hidden > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("the CUDA driver finds no device, but the machine has ", hidden,
                     ", which this process may not see: look at CUDA_VISIBLE_DEVICES, and in a systemd unit at "
                     "configs/systemd/lodestone-worker-gpu.conf"));
  }
  return absl::NotFoundError("the CUDA driver finds no device");
}

absl::StatusOr<std::unique_ptr<Backend>> CreateCuda(const CudaOptions& options) { return CudaBackend::Create(options); }

absl::StatusOr<std::unique_ptr<Backend>> CudaBackend::Create(const CudaOptions& options) {
  const absl::StatusOr<int> devices = CudaDevices();
  if (!devices.ok()) return devices.status();
  if (options.device < 0 || options.device >= *devices) {
    return absl::NotFoundError(absl::StrCat("there is no CUDA device ", options.device, ": there ",
                                            *devices == 1 ? "is 1" : absl::StrCat("are ", *devices), ", from 0"));
  }
  cudaDeviceProp properties;
  const cudaError_t error = cudaGetDeviceProperties(&properties, options.device);
  if (error != cudaSuccess) {
    return absl::InternalError(absl::StrCat("CUDA device ", options.device, ": ", ErrorText(error)));
  }
  const std::string name = absl::StrCat("cuda:", options.device, " (", static_cast<const char*>(properties.name), ")");
  const int capability = 100 * properties.major + 10 * properties.minor;
  if (capability < kCapabilities[0]) {
    return absl::FailedPreconditionError(absl::StrCat(name, " has compute capability ", CapabilityText(capability),
                                                      "; this program has code for ", CapabilityText(kCapabilities[0]),
                                                      " and later"));
  }
  absl::StatusOr<Cublas> cublas = LoadCublas(options.cublas);
  if (!cublas.ok()) return cublas.status();
  std::unique_ptr<CudaBackend> backend(new CudaBackend(options, name, *cublas));
  const absl::Status status = backend->Start();
  if (!status.ok()) return status;
  return std::unique_ptr<Backend>(std::move(backend));
}

CudaBackend::CudaBackend(const CudaOptions& options, std::string name, const Cublas& cublas)
    : options_(options), name_(std::move(name)), cublas_(cublas) {}

absl::Status CudaBackend::Start() {
  if (!Check(cudaSetDevice(options_.device), "starting", 0)) return Finish();
  for (cudaStream_t& stream : streams_) {
    if (!Check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream", 0)) return Finish();
  }
  cublasStatus_t status = cublas_.create(&handle_);
  if (status != CUBLAS_STATUS_SUCCESS) handle_ = nullptr;
  if (status == CUBLAS_STATUS_SUCCESS) status = cublas_.set_stream(handle_, stream(Queue::kCompute));
  if (status != CUBLAS_STATUS_SUCCESS)
    Fail(absl::StrCat("starting cuBLAS (", cublas_.path, "): ", cublas_.status_string(status)));
  return Finish();
}

CudaBackend::~CudaBackend() {
  cudaSetDevice(options_.device);
  for (cudaStream_t stream : streams_) {
    if (stream != nullptr) cudaStreamSynchronize(stream);
  }
  if (handle_ != nullptr) cublas_.destroy(handle_);
  for (const ScratchMemory& scratch : scratch_) cudaFree(scratch.data);
  for (cudaEvent_t mark : marks_) cudaEventDestroy(mark);
  for (cudaStream_t stream : streams_) {
    if (stream != nullptr) cudaStreamDestroy(stream);
  }
}

void CudaBackend::Fail(const std::string& what) {
  std::lock_guard<std::mutex> lock(mu_);
  status_.Update(absl::InternalError(absl::StrCat("on ", name_, ": ", what)));  // Keeps the first.
  failed_ = true;
}

bool CudaBackend::Check(cudaError_t error, const char* what, size_t bytes) {
  if (error == cudaSuccess) return true;
  cudaGetLastError();  // Else the next kernel's start would return it once more.
  std::string size;
  if (bytes > 0) size = absl::StrCat(" of ", bytes, " bytes");
  Fail(absl::StrCat(what, size, ": ", ErrorText(error)));
  return false;
}

bool CudaBackend::Ready() { return !failed_ && Check(cudaSetDevice(options_.device), "making the device current", 0); }

void CudaBackend::Started(const char* operation, std::initializer_list<size_t> shape, cudaError_t error) {
  newest_ = operation;
  if (error == cudaSuccess) return;
  cudaGetLastError();
  Fail(absl::StrCat(operation, " [", absl::StrJoin(shape, ", "), "]: ", ErrorText(error)));
}

void* CudaBackend::Allocate(size_t bytes) {
  void* memory = nullptr;
  if (bytes == 0 || !Ready()) return nullptr;
  return Check(cudaMalloc(&memory, bytes), "taking device memory", bytes) ? memory : nullptr;
}

void CudaBackend::Free(void* memory) {
  cudaSetDevice(options_.device);
  Check(cudaFree(memory), "giving back device memory", 0);
}

void* CudaBackend::AllocateHost(size_t bytes) {
  void* memory = nullptr;
  if (bytes == 0 || !Ready()) return nullptr;
  return Check(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault), "pinning host memory", bytes) ? memory : nullptr;
}

void CudaBackend::FreeHost(void* memory) {
  // The copy of a batch that was never computed may still read it.
  cudaSetDevice(options_.device);
  cudaStreamSynchronize(stream(Queue::kCopy));
  Check(cudaFreeHost(memory), "giving back host memory", 0);
}

void CudaBackend::CopyIn(Queue queue, size_t bytes, const void* host, void* memory) {
  if (bytes == 0 || !Ready()) return;
  Check(cudaMemcpyAsync(memory, host, bytes, cudaMemcpyHostToDevice, stream(queue)), "copying to the device", bytes);
}

void CudaBackend::CopyOut(size_t bytes, const void* memory, void* host) {
  if (bytes == 0 || !Ready()) return;
  Check(cudaMemcpyAsync(host, memory, bytes, cudaMemcpyDeviceToHost, stream(Queue::kCompute)),
        "copying from the device", bytes);
}

uint32_t CudaBackend::NewMark() {
  cudaEvent_t event = nullptr;
  if (Ready()) Check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making a mark", 0);
  std::lock_guard<std::mutex> lock(mu_);
  marks_.push_back(event);
  return static_cast<uint32_t>(marks_.size() - 1);
}

void CudaBackend::SetMark(Queue queue, uint32_t mark) {
  if (!Ready()) return;
  cudaEvent_t event;
  {
    std::lock_guard<std::mutex> lock(mu_);
    event = marks_[mark];
  }
  Check(cudaEventRecord(event, stream(queue)), "setting a mark", 0);
}

void CudaBackend::AwaitMark(uint32_t mark) {
  if (!Ready()) return;
  cudaEvent_t event;
  {
    std::lock_guard<std::mutex> lock(mu_);
    event = marks_[mark];
  }
  Check(cudaStreamWaitEvent(stream(Queue::kCompute), event, 0), "awaiting a mark", 0);
}

absl::Status CudaBackend::Finish() {
  // After a failure too: what was queued before it may still run.
  const bool ready = Ready();
  const cudaError_t error = cudaStreamSynchronize(stream(Queue::kCompute));
  if (ready && error != cudaSuccess) {
    Fail(absl::StrCat("while operations up to ", newest_, " ran: ", ErrorText(error)));
  }
  std::lock_guard<std::mutex> lock(mu_);
  return status_;
}

void* CudaBackend::ScratchOf(Scratch kind, size_t bytes) {
  ScratchMemory& scratch = scratch_[static_cast<size_t>(kind)];
  if (bytes <= scratch.bytes) return scratch.data;
  if (!Ready()) return nullptr;
  cudaFree(scratch.data);  // Waits until nothing runs any more.
  scratch = {};
  scratch.data = Allocate(bytes + bytes / 4);
  if (scratch.data != nullptr) scratch.bytes = bytes + bytes / 4;
  return scratch.data;
}

void CudaBackend::Copy(size_t n, const float* x, float* y) {
  if (n == 0 || !Ready()) return;
  Started("Copy", {n}, cudaMemcpyAsync(y, x, n * sizeof(float), cudaMemcpyDeviceToDevice, stream(Queue::kCompute)));
}

void CudaBackend::Fill(size_t n, float value, float* y) { ForEach(this, "Fill", {n}, n, FillBody{value, y}); }

}  // namespace lodestone::kernels
