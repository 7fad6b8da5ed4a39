#include "tests/kernels/emulated/grid.h"

#include <setjmp.h>
#include <ucontext.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "tests/kernels/emulated/address_spaces.h"
#include "tests/kernels/emulated/asan.h"

#ifdef LODESTONE_ASAN
#include <pthread.h>
#include <sanitizer/common_interface_defs.h>
#endif

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulated {
namespace {

constexpr unsigned kWarp = 32;
constexpr unsigned kThreadsMax = 1024;
constexpr size_t kSharedMax = 48 * 1024;
constexpr size_t kStackBytes = 64 * 1024;
constexpr uint32_t kSeed = 20261122;

struct Fiber {
  enum class State { kReady, kAtBlock, kAtWarp, kDone } state = State::kReady;
  ucontext_t context;  // Where it starts; with AddressSanitizer also where it goes on.
  jmp_buf jump;        // Where it goes on.
  bool started = false;
  std::unique_ptr<char[]> stack;
  bool odd_exchange = false;
};

// The one grid that runs.
class Grid {
 public:
  void Run(const cudaLaunchConfig_t& config, const std::function<void()>& thread) {
    const unsigned threads = config.blockDim.x;
    thread_ = &thread;
    while (fibers_.size() < threads) AddFiber();
    gridDim = config.gridDim;
    blockDim = config.blockDim;
    for (unsigned block = 0; block < config.gridDim.x; ++block) {
      blockIdx.x = block;
      // Exactly as large as it was asked for, and of no use before it is written.
      shared_.reset(new float[config.dynamicSmemBytes / sizeof(float)]);
      std::fill_n(shared_.get(), config.dynamicSmemBytes / sizeof(float), NAN);
      RunBlock(threads);
    }
  }

  void Await(Fiber::State state) {
    fibers_[current_]->state = state;
    Leave();
  }
  void* shared() { return shared_.get(); }
  void* Place(unsigned lane, bool odd) { return &places_[odd][current_ / kWarp * kWarp + lane]; }
  bool NextExchangeIsOdd() { return fibers_[current_]->odd_exchange = !fibers_[current_]->odd_exchange; }

 private:
  void AddFiber() {
    Fiber& fiber = *fibers_.emplace_back(std::make_unique<Fiber>());
    fiber.stack.reset(new char[kStackBytes]);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, &Grid::Enter, 0);
  }

  // A fiber's life: the same thread of one block after another.
  static void Enter() {
    Grid& grid = Get();
    grid.Arrived();
    while (true) {
      (*grid.thread_)();
      grid.Await(Fiber::State::kDone);
    }
  }

  void RunBlock(unsigned threads) {
    for (unsigned t = 0; t < threads; ++t) {
      fibers_[t]->state = Fiber::State::kReady;
      fibers_[t]->odd_exchange = false;
    }
    order_.resize(threads);
    std::iota(order_.begin(), order_.end(), 0);
    std::shuffle(order_.begin(), order_.end(), random_);
    do {
      for (const unsigned t : order_) {
        if (fibers_[t]->state == Fiber::State::kReady) Resume(t);
      }
    } while (Release(threads));
  }

  // Lets those go on who have waited for one another. False if all are done.
  bool Release(unsigned threads) {
    unsigned done = 0, at_block = 0;
    bool released = false;
    for (unsigned warp = 0; warp < threads; warp += kWarp) {
      const unsigned end = std::min(threads, warp + kWarp);
      unsigned at_warp = 0;
      for (unsigned t = warp; t < end; ++t) {
        done += fibers_[t]->state == Fiber::State::kDone;
        at_block += fibers_[t]->state == Fiber::State::kAtBlock;
        at_warp += fibers_[t]->state == Fiber::State::kAtWarp;
      }
      if (at_warp != end - warp) continue;
      for (unsigned t = warp; t < end; ++t) fibers_[t]->state = Fiber::State::kReady;
      released = true;
    }
    if (released) return true;
    if (done == threads) return false;
    if (at_block != threads) {
      EndForMistake("block %u: of %u threads, %u have ended and %u wait at a barrier", blockIdx.x, threads, done,
                    at_block);
    }
    for (unsigned t = 0; t < threads; ++t) fibers_[t]->state = Fiber::State::kReady;
    return true;
  }

  void Resume(unsigned t) {
    current_ = t;
    threadIdx.x = t;
    Fiber& fiber = *fibers_[t];
#ifdef LODESTONE_ASAN
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, fiber.stack.get(), kStackBytes);
    swapcontext(&main_, &fiber.context);
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#else
    // Several times as fast as swapcontext, which asks the kernel for the signal mask.
    if (_setjmp(main_jump_) != 0) return;
    if (fiber.started) _longjmp(fiber.jump, 1);
    fiber.started = true;
    setcontext(&fiber.context);
#endif
  }

  // From a fiber back to where it was resumed.
  void Leave() {
    Fiber& fiber = *fibers_[current_];
#ifdef LODESTONE_ASAN
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, main_stack_, main_stack_bytes_);
    swapcontext(&fiber.context, &main_);
    __sanitizer_finish_switch_fiber(fake_stack, &main_stack_, &main_stack_bytes_);
#else
    if (_setjmp(fiber.jump) == 0) _longjmp(main_jump_, 1);
#endif
  }

  // The first thing on a fiber.
  void Arrived() {
#ifdef LODESTONE_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &main_stack_, &main_stack_bytes_);
#endif
  }

 public:
  static Grid& Get() {
    static Grid* const grid = new Grid;
    return *grid;
  }

 private:
  const std::function<void()>* thread_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  unsigned current_ = 0;
  std::unique_ptr<float[]> shared_;
  uint64_t places_[2][kThreadsMax] = {};
  std::vector<unsigned> order_;
  std::mt19937 random_{kSeed};
#ifdef LODESTONE_ASAN
  ucontext_t main_;
  const void* main_stack_ = nullptr;
  size_t main_stack_bytes_ = 0;
#else
  jmp_buf main_jump_;
#endif
};

}  // namespace

bool IsPossible(const cudaLaunchConfig_t& config) {
  const unsigned threads = config.blockDim.x;
  return threads > 0 && threads <= kThreadsMax && config.gridDim.x > 0 && config.dynamicSmemBytes <= kSharedMax;
}
void RunGrid(const cudaLaunchConfig_t& config, const std::function<void()>& thread) { Grid::Get().Run(config, thread); }
void* DynamicShared() { return Grid::Get().shared(); }
void AwaitBlock() { Grid::Get().Await(Fiber::State::kAtBlock); }
void AwaitWarp() { Grid::Get().Await(Fiber::State::kAtWarp); }
void* ExchangePlace(unsigned lane, bool odd) { return Grid::Get().Place(lane, odd); }
bool NextExchangeIsOdd() { return Grid::Get().NextExchangeIsOdd(); }

}  // namespace emulated
