#include "step_failure.h"

#include <fmt/format.h>

namespace lancet::runtime {
namespace {

// The longest that a device stream may stay busy after a failure, since all flags are set then.
constexpr std::chrono::seconds drain_time(30);

Error at_stream(std::size_t stream, const Error& error) {
  return {error.code, fmt::format("stream {}: {}", ir::name(static_cast<ir::Stream>(stream)), error.message), false};
}

}  // namespace

void StepFailure::watch_steps(const Streams& streams, const FlagPlan& flag_plan) {
  for (std::size_t stream = 1; stream < ir::stream_count; ++stream) {
    std::vector<StreamWatch::Step> steps;
    for (const Section& section : flag_plan.streams[stream]) {
      StreamWatch::Step& step = steps.emplace_back();
      step.instruction = streams[stream][section.begin].instruction;
      for (std::size_t wait : section.waits) step.waits.push_back(flags_.planned(wait));
      step.done = flags_.planned(static_cast<std::size_t>(section.signal));
      const auto instruction = static_cast<std::size_t>(step.instruction);
      step.comm = find_group(options_, plan_.program.instructions[instruction])->device_comm;
    }
    watches_[stream] = StreamWatch(std::move(steps), device_communicators(options_.groups[stream]), options_.timeout);
  }
}

void StepFailure::start_step() {
  flags_.write_all(0);
  for (StreamWatch& watch : watches_) watch.start_alone(-1);  // no instruction, until a stream or an instruction starts
  errors_.clear();
  failed_.store(false, std::memory_order_relaxed);
}

void StepFailure::fail(std::size_t stream, const Error& error) {
  const bool first = errors_.add(stream, error);
  failed_at_.store(Clock::now());  // by each: one that came second may be the first to set failed_
  failed_.store(true);
  if (!first) return;
  const std::vector<comm::DeviceCommunicator*> all = device_communicators(options_);
  for (comm::DeviceCommunicator* comm : all) comm->stop_pushes();
  flags_.write_all(1);  // before the abort, which may wait for all device streams
  comm::abort_all(all, error.message);
}

Status StepFailure::watch(std::size_t stream) {
  if (failed_.load()) return communication_error("another stream failed");
  return watches_[stream].look();
}

Status StepFailure::drain(std::size_t stream) {
  const auto watching = [&]() -> Status {
    if (!failed_.load()) return watch(stream);
    if (Clock::now() - failed_at_.load() < drain_time) return {};
    return internal_error(
        fmt::format("the device stream is still busy {} s after the step failed", drain_time.count()));
  };
  return wait_until_idle(*queues_[stream], watching, &usual_[stream], failed_.load() ? nullptr : flags_.end(stream));
}

void StepFailure::finish(std::size_t stream, const Status& enqueued) {
  if (!enqueued.ok()) fail(stream, enqueued.error());
  const Status ended = drain(stream);
  if (ended.ok()) return;
  if (enqueued.ok()) fail(stream, of_stream(stream, ended.error()));
  static_cast<void>(drain(stream));  // fail() has released the flags that it waited for
}

Status StepFailure::check_transports() const {
  for (std::size_t stream = 1; stream < ir::stream_count; ++stream)
    for (comm::DeviceCommunicator* comm : device_communicators(options_.groups[stream]))
      if (const Status status = comm->check(); !status.ok()) return at_stream(stream, status.error());
  return {};
}

Error StepFailure::of_stream(std::size_t stream, const Error& error) const {
  if (const auto& stuck = watches_[stream].stuck(); stuck && stuck->instruction >= 0)
    return error_at(plan_, stuck->instruction, stuck->error);
  return at_stream(stream, error);
}

Error StepFailure::of_instruction(std::size_t stream, std::int32_t instruction, const Error& error) const {
  // The kernel may have waited for a stuck instruction before it.
  return watches_[stream].stuck() ? of_stream(stream, error) : error_at(plan_, instruction, error);
}

}  // namespace lancet::runtime
