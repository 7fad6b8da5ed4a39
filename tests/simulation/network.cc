#include "tests/simulation/network.h"

#include <algorithm>

namespace lodestone::simulation {
namespace {

constexpr int64_t kLookAgainUs = 5'000;  // Whether machines reach each other again, or a process listens.

}  // namespace

Line::Line(Network* network, const ProcessRef& opener, const ProcessRef& taker) : network_(network) {
  ends_[0].process = opener;
  ends_[1].process = taker;
}

void Line::Listen(int side, OnMessage on_message, OnClosed on_closed, bool also_dead) {
  ends_[side].listens = true;
  ends_[side].on_message = std::move(on_message);
  ends_[side].on_closed = std::move(on_closed);
  ends_[side].also_dead = also_dead;
}

void Line::Send(int side, std::string message) {
  if (ends_[side].closed || !ends_[side].process->alive) return;
  Queue(1 - side, {std::move(message), std::nullopt}, network_->DelayUs());
}

void Line::Close(int side, const absl::Status& status) {
  if (ends_[side].closed) return;
  ends_[side].closed = true;
  if (!ends_[side].process->alive) return;  // Its death has been told.
  Queue(1 - side, {"", status}, network_->DelayUs());
}

void Line::Tear() {
  for (int side = 0; side < 2; ++side) {
    ends_[side].coming.clear();
    ends_[side].telling = false;  // If an end was on its way, it is lost with the rest: this one takes its place.
    Queue(side, {"", absl::UnavailableError("the connection was torn")}, network_->DelayUs());
  }
}

void Line::Queue(int to, Item item, int64_t us) {
  End& end = ends_[to];
  if (end.telling) return;
  end.telling = item.end.has_value();
  end.coming.push_back(std::move(item));
  Kernel* const kernel = network_->kernel();
  end.arrival_us = std::max(end.arrival_us + 1, kernel->NowUs() + us);
  kernel->After(
      end.arrival_us - kernel->NowUs(), end.process, [self = shared_from_this(), to] { self->Arrive(to); },
      end.also_dead);
}

void Line::Arrive(int to) {
  End& end = ends_[to];
  if (end.coming.empty()) return;  // It was torn meanwhile.
  const bool cut = network_->IsCut(ends_[0].process->machine, ends_[1].process->machine) && end.process->alive;
  if (cut || !end.listens) {
    network_->kernel()->After(
        kLookAgainUs, end.process, [self = shared_from_this(), to] { self->Arrive(to); }, end.also_dead);
    return;
  }
  const Item item = std::move(end.coming.front());
  end.coming.pop_front();
  if (end.closed) return;
  if (!item.end.has_value()) {
    const OnMessage on_message = end.on_message;
    if (on_message) on_message(item.message);
    return;
  }
  end.closed = true;
  const OnClosed on_closed = std::exchange(end.on_closed, nullptr);
  end.on_message = nullptr;
  if (on_closed) on_closed(*item.end);
}

int64_t Network::DelayUs() {
  if (kernel_->Chance(0.05)) return kernel_->Between(usual_us_, most_us_);
  return kernel_->Between(usual_us_ / 2, usual_us_ * 2);
}

LineRef Network::Connect(const ProcessRef& opener, const ProcessRef& taker) {
  auto line = std::make_shared<Line>(this, opener, taker);
  std::erase_if(lines_, [](const auto& one) { return one.expired(); });
  lines_.push_back(line);
  return line;
}

void Network::TearLines(uint32_t a, uint32_t b) {
  const auto ends = std::minmax(a, b);
  for (const auto& weak : std::vector(lines_)) {
    const LineRef line = weak.lock();
    if (line == nullptr || kernel_->Chance(0.3)) continue;
    if (std::minmax(line->process(0)->machine, line->process(1)->machine) == ends) line->Tear();
  }
}

void Network::EndLinesOf(const ProcessRef& process, int64_t us) {
  for (const auto& weak : std::vector(lines_)) {
    const LineRef line = weak.lock();
    if (line == nullptr) continue;
    for (int side = 0; side < 2; ++side) {
      if (line->process(side) != process) continue;
      line->Queue(1 - side, {"", absl::UnavailableError("the process at the other end is gone")}, us + DelayUs());
      // What runs on in the dead process sees its own end closed.
      line->Queue(side, {"", absl::UnavailableError("this process is dead")}, 0);
    }
  }
}

void Network::Carry(const ProcessRef& from, const ProcessRef& to, std::function<void()> event) {
  if (!from->alive) return;
  kernel_->After(DelayUs(), to, [this, from, to, event = std::move(event)]() mutable {
    if (!IsCut(from->machine, to->machine)) return event();
    kernel_->After(kLookAgainUs, to, [this, from, to, event = std::move(event)]() mutable {
      if (IsCut(from->machine, to->machine)) return;  // The caller does not wait for so long.
      event();
    });
  });
}

absl::StatusOr<std::string> Network::Call(const ProcessRef& callee, const Handler& handler, std::string request,
                                          int64_t timeout_ms) {
  const ProcessRef caller = kernel_->process();
  if (!caller->alive) return absl::UnavailableError("this process is dead");
  struct State {
    std::optional<absl::StatusOr<std::string>> answer;
  };
  const auto state = std::make_shared<State>();
  Kernel* const kernel = kernel_;
  if (callee != nullptr && callee->alive && !kernel_->Chance(loss_)) {
    Carry(caller, callee, [this, caller, callee, handler, state, request = std::move(request)] {
      handler(request, [this, caller, callee, state](absl::StatusOr<std::string> answer) {
        if (kernel_->Chance(loss_)) return;
        Carry(callee, caller, [this, state, answer = std::move(answer)] {
          state->answer = answer;
          kernel_->Notify(state.get());
        });
      });
    });
  } else if (callee == nullptr && !kernel_->Chance(loss_)) {
    kernel_->After(DelayUs(), caller, [kernel, state] {
      state->answer = absl::UnavailableError("nobody is there");
      kernel->Notify(state.get());
    });
  }
  const int64_t until_ms = kernel_->NowMs() + timeout_ms;
  while (!state->answer.has_value() && caller->alive && kernel_->NowMs() < until_ms)
    kernel_->Wait(state.get(), until_ms);
  if (!caller->alive) return absl::UnavailableError("this process is dead");
  return state->answer.has_value() ? *state->answer : absl::DeadlineExceededError("no answer came in time");
}

}  // namespace lodestone::simulation
