#include "pace.h"

#include <algorithm>
#include <thread>

namespace lancet::runtime {
namespace {

constexpr double most_taken = 0.9;      // of the compute stream's time, as in the simulator
constexpr double negligible_ns = 1000;  // not worth another sleep

}  // namespace

Pace::Pace(const ir::Plan& plan, double signal_ns, double dilation)
    : plan_(plan),
      signal_ns_(signal_ns),
      dilation_(dilation),
      before_(plan.program.instructions.size(), -1),
      end_(plan.program.instructions.size()) {
  std::array<std::int32_t, ir::stream_count> last;
  last.fill(-1);
  for (std::size_t i = 0; i < before_.size(); ++i) {
    std::int32_t& previous = last[std::size_t(plan.program.instructions[i].stream)];
    before_[i] = previous;
    previous = std::int32_t(i);
  }
  for (std::size_t stream = 0; stream < ir::stream_count; ++stream)
    messages_[stream].reserve(std::size_t(std::ranges::count_if(
        plan.program.instructions, [&](const ir::Instruction& at) { return std::size_t(at.stream) == stream; })));
}

void Pace::begin_step() {
  for (auto& messages : messages_) messages.clear();
  late_.fill(0);
  start_ = Clock::now();
}

double Pace::now() const { return std::chrono::duration<double, std::nano>(Clock::now() - start_).count() / dilation_; }

void Pace::sleep_until(double time) const {
  std::this_thread::sleep_until(start_ + std::chrono::nanoseconds(std::int64_t(time * dilation_)));
}

double Pace::ready(std::int32_t instruction) const {
  const auto index = std::size_t(instruction);
  double ready = before_[index] < 0 ? 0 : end_[std::size_t(before_[index])];
  for (const ir::InstructionId wait : plan_.waits[index]) {
    const bool signalled = plan_.program.instructions[wait.index()].stream != plan_.program.instructions[index].stream;
    ready = std::max(ready, end_[wait.index()] + (signalled ? signal_ns_ : 0));
  }
  return ready;
}

void Pace::compute(std::int32_t instruction, double ns) {
  const double start = ready(instruction);
  double end = start + ns;
  for (;;) {
    sleep_until(end);
    const double later = start + ns + taken(start, end);
    if (later <= end + negligible_ns) break;
    end = later;
  }
  end_[std::size_t(instruction)] = end;
}

void Pace::begin_message(std::int32_t instruction, double ns, double share) {
  const double start = ready(instruction);
  sleep_until(start);
  const double begun = now();
  late_of(instruction) += std::max(0.0, begun - start);
  const std::lock_guard lock(mutex_);
  messages_of(instruction).push_back({begun, begun + ns, share});
}

void Pace::end_message(std::int32_t instruction, double latency_ns) {
  const double wanted = now() + latency_ns;
  if (latency_ns > 0) sleep_until(wanted);
  const double end = end_[std::size_t(instruction)] = now();
  late_of(instruction) += end - wanted;
  const std::lock_guard lock(mutex_);
  Message& message = messages_of(instruction).back();
  message.end = std::min(message.end, end);
}

double Pace::late_ns() const {
  double sum = 0;
  for (const double late : late_) sum += late;
  return sum;
}

double Pace::taken(double from, double to) const {
  const std::lock_guard lock(mutex_);
  double sum = 0;
  for (const auto& messages : messages_)
    for (auto message = messages.rbegin(); message != messages.rend() && message->end > from; ++message)
      sum += message->share * std::max(0.0, std::min(to, message->end) - std::max(from, message->start));
  return std::min(sum, most_taken * (to - from));
}

std::size_t Pace::stream_of(std::int32_t instruction) const {
  return std::size_t(plan_.program.instructions[std::size_t(instruction)].stream);
}

}  // namespace lancet::runtime
