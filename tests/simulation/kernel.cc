#include "tests/simulation/kernel.h"

#include <sys/mman.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/hash.h"

namespace lodestone::simulation {
namespace {

constexpr size_t kStackBytes = 512 << 10;
constexpr int64_t kWakeUsMax = 50;  // From a notification until who waited runs: that is drawn.

}  // namespace

Kernel::Kernel(uint64_t seed, bool trace) : random_(Mix64(seed)), trace_(trace) {
  world_ = std::make_shared<Process>();
  world_->name = "world";
  Simulation::SetCurrent(this);
}

Kernel::~Kernel() {
  LODESTONE_CHECK(fibers_.empty());
  Simulation::SetCurrent(nullptr);
  for (char* const stack : stacks_) munmap(stack, kStackBytes);
}

uint64_t Kernel::Draw(uint64_t below) {
  random_ += 0x9e3779b97f4a7c15u;
  return Mix64(random_) % below;
}

int64_t Kernel::Between(int64_t low, int64_t high) {
  LODESTONE_CHECK(low <= high);
  return low + static_cast<int64_t>(Draw(static_cast<uint64_t>(high - low) + 1));
}

const ProcessRef& Kernel::process() const { return running_ == nullptr ? world_ : running_->process; }

void Kernel::Push(int64_t us, const ProcessRef& process, std::function<void()> run) {
  queue_.push(Event{now_us_ + std::max<int64_t>(0, us), ++order_, std::move(run), process});
}

void Kernel::After(int64_t us, const ProcessRef& process, std::function<void()> event, bool also_dead) {
  Push(us, process, [this, process, event = std::move(event), also_dead]() mutable {
    if (!process->alive && !also_dead) return;
    Fiber* const fiber = Make(process, std::move(event));
    fiber->is_event = true;
    Resume(fiber);
  });
}

void Kernel::RunUntil(int64_t until_us, const std::function<bool()>& done) {
  LODESTONE_CHECK(running_ == nullptr);
  while (!queue_.empty() && queue_.top().at_us <= until_us && (done == nullptr || !done())) {
    const ProcessRef process = queue_.top().process;
    std::function<void()> run = std::move(queue_.top().run);
    now_us_ = std::max(now_us_, queue_.top().at_us);
    queue_.pop();
    ++events_;
    if (process->stopped) {
      process->held.push_back(std::move(run));
    } else {
      run();
    }
  }
  if (done == nullptr) now_us_ = std::max(now_us_, until_us);
}

void Kernel::Continue(const ProcessRef& process) {
  process->stopped = false;
  for (auto& run : std::exchange(process->held, {})) Push(0, process, std::move(run));
}

Kernel::Fiber* Kernel::Make(const ProcessRef& process, std::function<void()> body) {
  auto fiber = std::make_unique<Fiber>();
  fiber->id = ++last_id_;
  fiber->process = process;
  fiber->body = std::move(body);
  if (stacks_.empty()) {
    void* const stack =
        mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    LODESTONE_CHECK(stack != MAP_FAILED);
    stacks_.push_back(static_cast<char*>(stack));
  }
  fiber->stack = stacks_.back();
  stacks_.pop_back();
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack;
  fiber->context.uc_stack.ss_size = kStackBytes;
  fiber->context.uc_link = &main_;
  const auto bits = reinterpret_cast<uintptr_t>(fiber.get());
  makecontext(&fiber->context, reinterpret_cast<void (*)()>(&Kernel::Enter), 2, static_cast<uint32_t>(bits >> 32),
              static_cast<uint32_t>(bits));
  Fiber* const made = fiber.get();
  fibers_[made->id] = std::move(fiber);
  return made;
}

void Kernel::Enter(uint32_t high, uint32_t low) {
  auto* const fiber = reinterpret_cast<Fiber*>((uintptr_t{high} << 32) | low);
  fiber->body();
  fiber->body = nullptr;
  fiber->done = true;
}

void Kernel::Resume(Fiber* fiber) {
  LODESTONE_CHECK(running_ == nullptr);
  fiber->ready = false;
  running_ = fiber;
  swapcontext(&main_, &fiber->context);
  running_ = nullptr;
  if (fiber->done) End(fiber);
}

void Kernel::End(Fiber* fiber) {
  stacks_.push_back(std::exchange(fiber->stack, nullptr));
  Notify(fiber);
  if (!fiber->is_event) return;  // It is joined.
  Notify(fiber->process.get());
  fibers_.erase(fiber->id);
}

Simulation::ThreadId Kernel::StartThread(std::function<void()> body) {
  Fiber* const fiber = Make(process(), std::move(body));
  WakeSoon(fiber);
  return fiber->id;
}

void Kernel::JoinThread(ThreadId thread) {
  Fiber* const fiber = fibers_.at(thread).get();
  while (!fiber->done) WaitUs(fiber, kNever);
  fibers_.erase(thread);
}

void Kernel::WakeSoon(Fiber* fiber) {
  if (fiber->ready) return;
  fiber->ready = true;
  const ThreadId id = fiber->id;
  Push(Between(0, kWakeUsMax), fiber->process, [this, id] { Resume(fibers_.at(id).get()); });
}

void Kernel::Wait(const void* on, int64_t until_ms) {
  WaitUs(on, until_ms >= kNever / 1000 ? kNever : until_ms * 1000);
}

void Kernel::WaitUs(const void* on, int64_t until_us) {
  LODESTONE_CHECK(in_fiber());
  Fiber* const fiber = running_;
  const uint64_t wait = ++fiber->wait;
  fiber->on = on;
  waiting_[on].insert(fiber->id);
  if (until_us != kNever) {
    const ThreadId id = fiber->id;
    Push(until_us - now_us_, fiber->process, [this, id, wait] {
      const auto found = fibers_.find(id);
      if (found == fibers_.end() || found->second->wait != wait || found->second->on == nullptr) return;
      Fiber* const late = found->second.get();
      if (!late->ready) Resume(late);
    });
  }
  swapcontext(&fiber->context, &main_);
  const auto found = waiting_.find(fiber->on);
  found->second.erase(fiber->id);
  if (found->second.empty()) waiting_.erase(found);
  fiber->on = nullptr;
}

void Kernel::Notify(const void* on) {
  const auto found = waiting_.find(on);
  if (found == waiting_.end()) return;
  for (const ThreadId id : found->second) WakeSoon(fibers_.at(id).get());
}

void Kernel::WakeAll(const Process* process) {
  for (const auto& [id, fiber] : fibers_) {
    if (fiber->process.get() == process && fiber->on != nullptr) WakeSoon(fiber.get());
  }
}

void Kernel::Sleep(int64_t us) {
  const ProcessRef process = running_->process;
  const int64_t until_us = now_us_ + us;
  const int own = 0;
  while (process->alive && now_us_ < until_us) WaitUs(&own, until_us);
}

void Kernel::AwaitEventsOf(const Process* process) {
  const auto any = [&] {
    return std::any_of(fibers_.begin(), fibers_.end(), [&](const auto& entry) {
      return entry.second.get() != running_ && entry.second->process.get() == process && entry.second->is_event;
    });
  };
  while (any()) WaitUs(process, kNever);
}

void Kernel::Trace(absl::string_view line) {
  const std::string text = absl::StrCat(now_us_, " ", line);
  for (const char c : text) hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 1099511628211u;
  if (!trace_) return;
  std::printf("%10.6f  %.*s\n", static_cast<double>(now_us_ - 1'000'000'000) / 1e6, static_cast<int>(line.size()),
              line.data());
  std::fflush(stdout);
}

}  // namespace lodestone::simulation
