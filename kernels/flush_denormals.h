// Within its scope the thread that made it takes denormal numbers for zero, as factors and as results. Processors that
// handle them in microcode take a hundred times as long for each, and values that start or end near zero make many.
//
// What the thread had before is restored at the end of the scope; scopes may be nested. Threads that are started within
// it keep the mode permanently. Elsewhere than on x86 and 64-bit ARM nothing happens.
#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace lodestone::kernels {

class FlushDenormals {
 public:
#if defined(__SSE2__) || defined(__aarch64__)
  static constexpr bool kAvailable = true;
#else
  static constexpr bool kAvailable = false;
#endif

  FlushDenormals() : before_(Mode() & kFlush) { SetMode(Mode() | kFlush); }
  ~FlushDenormals() { SetMode((Mode() & ~kFlush) | before_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
#if defined(__SSE2__)
  static constexpr uint64_t kFlush = 0x8040;  // MXCSR: FTZ and DAZ.
  static uint64_t Mode() { return _mm_getcsr(); }
  static void SetMode(uint64_t mode) { _mm_setcsr(static_cast<uint32_t>(mode)); }
#elif defined(__aarch64__)
  static constexpr uint64_t kFlush = 1 << 24;  // FPCR: FZ.
  static uint64_t Mode() {
    uint64_t mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void SetMode(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#else
  static constexpr uint64_t kFlush = 0;
  static uint64_t Mode() { return 0; }
  static void SetMode(uint64_t) {}
#endif

  const uint64_t before_;
};

}  // namespace lodestone::kernels
