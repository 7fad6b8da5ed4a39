#include "tools/psctl/client/interrupt_watch.h"

#include <atomic>
#include <iterator>

namespace lodestone::psctl {
namespace {

std::atomic<bool> noted{false};
static_assert(std::atomic<bool>::is_always_lock_free);  // A signal handler writes it.

void Note(int) { noted.store(true, std::memory_order_relaxed); }

}  // namespace

InterruptWatch::InterruptWatch() {
  noted.store(false, std::memory_order_relaxed);
  struct sigaction action = {};
  action.sa_handler = Note;
  sigemptyset(&action.sa_mask);
  action.sa_flags = static_cast<int>(SA_RESTART | SA_RESETHAND);
  static_assert(std::size(kSignals) == std::size(decltype(former_){}));
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    sigaction(kSignals[i], nullptr, &former_[i]);
    if (former_[i].sa_handler != SIG_IGN) sigaction(kSignals[i], &action, nullptr);
  }
}

InterruptWatch::~InterruptWatch() {
  for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &former_[i], nullptr);
}

bool InterruptWatch::interrupted() const { return noted.load(std::memory_order_relaxed); }

}  // namespace lodestone::psctl
