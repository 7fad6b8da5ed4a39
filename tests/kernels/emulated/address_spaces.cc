#include "tests/kernels/emulated/address_spaces.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>

#include "tests/kernels/emulated/asan.h"

namespace emulated {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kGap = 256;                      // Between two pieces of device memory, at least.
constexpr size_t kRegionBytes = size_t{1} << 40;  // Addresses, not memory.
constexpr size_t kOpenedBytes = size_t{1} << 20;  // By which the part of the region that has been used grows.
constexpr unsigned char kPoison = 0xff;           // Floats and doubles of it are NaN.

size_t RoundUp(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

// Pieces of memory by their beginnings, with their sizes.
using Pieces = std::map<uintptr_t, size_t>;

// The piece that has the byte, or ends there, or null.
const Pieces::value_type* PieceOf(const Pieces& pieces, const void* memory) {
  const auto at = reinterpret_cast<uintptr_t>(memory);
  auto piece = pieces.upper_bound(at);
  if (piece == pieces.begin()) return nullptr;
  --piece;
  return at - piece->first <= piece->second ? &*piece : nullptr;
}

bool Within(const Pieces::value_type& piece, const void* memory, size_t bytes) {
  const size_t offset = reinterpret_cast<uintptr_t>(memory) - piece.first;
  return offset <= piece.second && bytes <= piece.second - offset;
}

thread_local bool accesses = false;  // Whether the thread runs a kernel.

// The region and what lies in it.
class Device {
 public:
  static Device& Get() {
    static Device* const device = new Device;
    return *device;
  }

  void* Take(size_t bytes) {
    const size_t room = RoundUp(bytes, kAlignment) + kGap;
    uintptr_t at = begin_ + kGap;
    for (const auto& [piece, size] : pieces_) {
      if (piece - at >= room) break;  // It fits before this one.
      at = piece + RoundUp(size, kAlignment) + kGap;
    }
    if (at + room > begin_ + kRegionBytes) return nullptr;
    Grow(at + room);
    void* const memory = reinterpret_cast<void*>(at);
    std::memset(Reachable(memory), kPoison, room);
    ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
    pieces_[at] = bytes;
    return memory;
  }

  bool GiveBack(void* memory) {
    const auto piece = pieces_.find(reinterpret_cast<uintptr_t>(memory));
    if (piece == pieces_.end()) return false;
    const auto* const end = static_cast<const unsigned char*>(Reachable(memory)) + piece->second;
    if (!std::all_of(end, end + kGap, [](unsigned char byte) { return byte == kPoison; })) {
      EndForMistake("a kernel has written behind device memory of %zu bytes", piece->second);
    }
    ASAN_POISON_MEMORY_REGION(memory, piece->second);
    pieces_.erase(piece);
    return true;
  }

  void Open() {
    Protect(PROT_READ | PROT_WRITE);
    accesses = true;
  }
  void Close() {
    accesses = false;
    Protect(PROT_NONE);
  }

  // The memory's other address, if it is the device's.
  void* Reachable(const void* memory) const {
    const auto at = reinterpret_cast<uintptr_t>(memory);
    return Has(memory) ? always_open_ + (at - begin_) : reinterpret_cast<void*>(at);
  }
  bool Has(const void* memory, size_t bytes = 1) const {
    const auto at = reinterpret_cast<uintptr_t>(memory);
    return at < begin_ + kRegionBytes && at + bytes > begin_;
  }
  const Pieces& pieces() const { return pieces_; }

 private:
  Device() {
    const int file = memfd_create("emulated device", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, kRegionBytes) != 0) EndForMistake("no device memory");
    begin_ = used_ = reinterpret_cast<uintptr_t>(Map(file, PROT_NONE));
    always_open_ = static_cast<char*>(Map(file, PROT_READ | PROT_WRITE));
    close(file);
    struct sigaction action = {};
    action.sa_sigaction = &Device::Fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &before_);
  }

  static void* Map(int file, int protection) {
    void* const region = mmap(nullptr, kRegionBytes, protection, MAP_SHARED | MAP_NORESERVE, file, /*offset=*/0);
    if (region == MAP_FAILED) EndForMistake("no addresses for device memory");
    return region;
  }

  void Protect(int protection) {
    if (used_ > begin_ && mprotect(reinterpret_cast<void*>(begin_), used_ - begin_, protection) != 0) {
      EndForMistake("mprotect fails");
    }
  }

  // Lets the used part end there or later.
  void Grow(uintptr_t end) {
    if (end <= used_) return;
    const size_t bytes = RoundUp(end - used_, kOpenedBytes);
    ASAN_POISON_MEMORY_REGION(reinterpret_cast<void*>(used_), bytes);
    used_ += bytes;
  }

  // Says what went wrong; the instruction, tried again, then ends the process as it would have.
  static void Fault(int, siginfo_t* info, void*) {
    const Device& device = Get();
    char line[256];
    int length = 0;
    if (accesses) {
      length = std::snprintf(line, sizeof line,
                             "emulated CUDA: a kernel touches %p, which is not device memory (an index that nothing "
                             "has been copied to is 0xffffffff)\n",
                             info->si_addr);
    } else if (device.Has(info->si_addr)) {
      length = std::snprintf(line, sizeof line, "emulated CUDA: the host touches device memory at %p\n", info->si_addr);
    }
    if (length > 0 && write(STDERR_FILENO, line, length) < 0) abort();
    sigaction(SIGSEGV, &device.before_, nullptr);
  }

  uintptr_t begin_ = 0;
  uintptr_t used_ = 0;  // The end of the part that was ever used.
  Pieces pieces_;
  char* always_open_ = nullptr;
  struct sigaction before_ = {};
};

Pieces& Pinned() {
  static auto* const pieces = new Pieces;
  return *pieces;
}

}  // namespace

void* TakeDevice(size_t bytes) { return Device::Get().Take(bytes); }
bool GiveBackDevice(void* memory) { return Device::Get().GiveBack(memory); }

void* TakePinned(size_t bytes) {
  void* const memory = ::operator new (bytes, std::align_val_t{kAlignment});
  Poison(memory, bytes);
  Pinned()[reinterpret_cast<uintptr_t>(memory)] = bytes;
  return memory;
}

bool GiveBackPinned(void* memory) {
  if (Pinned().erase(reinterpret_cast<uintptr_t>(memory)) == 0) return false;
  ::operator delete (memory, std::align_val_t{kAlignment});
  return true;
}

bool NothingIsTaken() { return Device::Get().pieces().empty() && Pinned().empty(); }

bool IsDevice(const void* memory, size_t bytes) {
  const auto* const piece = PieceOf(Device::Get().pieces(), memory);
  return piece != nullptr && Within(*piece, memory, bytes);
}

bool IsHost(const void* memory, size_t bytes) {
  if (memory == nullptr || Device::Get().Has(memory, bytes)) return false;
  const auto* const piece = PieceOf(Pinned(), memory);
  return piece == nullptr || Within(*piece, memory, bytes);
}

bool Overlap(const void* a, size_t bytes_a, const void* b, size_t bytes_b) {
  const auto at_a = reinterpret_cast<uintptr_t>(a), at_b = reinterpret_cast<uintptr_t>(b);
  return at_a < at_b + bytes_b && at_b < at_a + bytes_a;
}

bool IsPinned(const void* memory) { return PieceOf(Pinned(), memory) != nullptr; }

DeviceAccess::DeviceAccess() { Device::Get().Open(); }
DeviceAccess::~DeviceAccess() { Device::Get().Close(); }

void Copy(void* to, const void* from, size_t bytes) {
  const Device& device = Device::Get();
  std::memcpy(device.Reachable(to), device.Reachable(from), bytes);
}
void Set(void* memory, int value, size_t bytes) { std::memset(Device::Get().Reachable(memory), value, bytes); }
void Poison(void* memory, size_t bytes) { Set(memory, kPoison, bytes); }

void EndForMistake(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::fputs("emulated CUDA: ", stderr);
  std::vfprintf(stderr, format, arguments);
  std::fputc('\n', stderr);
  va_end(arguments);
  std::abort();
}

}  // namespace emulated
