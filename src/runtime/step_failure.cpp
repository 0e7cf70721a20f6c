#include "step_failure.h"

#include <fmt/format.h>
#include <algorithm>
#include <atomic>

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

// look() is called again and again by a thread that waits for the stream. At most every 200 microseconds it checks
// the transport for errors and reads the steps' flags. The clock of the timeout restarts whenever a step ends or the
// current step still waits for what comes before it: only an instruction that could run, and does not end, counts as
// stuck.
namespace {

constexpr std::chrono::microseconds between_looks(200);

bool set(backend::Flag* flag) { return std::atomic_ref(*flag).load(std::memory_order_acquire) != 0; }

std::string too_long(comm::DeviceCommunicator& comm, std::chrono::milliseconds timeout) {
  std::string text = fmt::format("expected all {} ranks within {} s by {}, found that it did not end", comm.size(),
                                 double(timeout.count()) * 1e-3, comm.transport());
  if (const std::string missing = comm.who_is_missing(); !missing.empty()) text += "; " + missing;
  return text;
}

}  // namespace

StreamWatch::StreamWatch(std::vector<Step> steps, std::vector<comm::DeviceCommunicator*> calls,
                         std::chrono::milliseconds timeout)
    : steps_(std::move(steps)),
      calls_(std::move(calls)),
      waits_(std::ranges::any_of(steps_, [](const Step& step) { return step.comm != nullptr; })),
      timeout_(timeout) {}

void StreamWatch::start() {
  at_ = 0;
  alone_.reset();
  stuck_.reset();
  since_ = looked_ = Clock::now();
}

void StreamWatch::start_alone(std::int32_t instruction) {
  start();
  at_ = steps_.size();
  const auto found = std::ranges::find(steps_, instruction, &Step::instruction);
  if (found != steps_.end()) alone_ = static_cast<std::size_t>(found - steps_.begin());
}

const StreamWatch::Step* StreamWatch::current() const {
  const std::size_t at = alone_.value_or(at_);
  return at < steps_.size() ? &steps_[at] : nullptr;
}

bool StreamWatch::under_way() {
  if (alone_) return true;
  const std::size_t before = at_;
  while (at_ < steps_.size() && set(steps_[at_].done)) ++at_;
  if (at_ == steps_.size()) return false;
  return at_ == before && std::all_of(steps_[at_].waits.begin(), steps_[at_].waits.end(), set);
}

Status StreamWatch::look() {
  if (stuck_) return stuck_->error;
  const auto now = Clock::now();
  if ((!waits_ && calls_.empty()) || now - looked_ < between_looks) return {};
  looked_ = now;
  Status called;
  for (comm::DeviceCommunicator* comm : calls_)
    if (called.ok()) called = comm->check();
  const bool runs = under_way();
  const Step* step = current();
  if (!called.ok()) {
    stuck_ = Stuck{step ? step->instruction : -1, called.error()};
  } else if (!runs || !step->comm) {
    since_ = now;
  } else if (now - since_ > timeout_) {
    stuck_ = Stuck{step->instruction, communication_error(too_long(*step->comm, timeout_))};
  }
  return stuck_ ? Status(stuck_->error) : Status();
}

}  // namespace lancet::runtime
