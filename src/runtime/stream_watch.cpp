// look() is called again and again by a thread that waits for the stream. At most every 200 microseconds it checks
// the transport for errors and reads the steps' flags. The clock of the timeout restarts whenever a step ends or the
// current step still waits for what comes before it: only an instruction that could run, and does not end, counts as
// stuck.
#include "stream_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

namespace lancet::runtime {
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

void StreamWatch::start() {
  at_ = 0;
  alone_.reset();
  stuck_.reset();
  since_ = looked_ = Clock::now();
}

void StreamWatch::start_alone(std::int32_t instruction) {
  start();
  at_ = steps_.size();
  if (std::ranges::any_of(steps_, [&](const Step& step) { return step.instruction == instruction; }))
    alone_ = instruction;
}

std::int32_t StreamWatch::instruction() const {
  if (alone_) return *alone_;
  return at_ < steps_.size() ? steps_[at_].instruction : -1;
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
  if (!comm_ || now - looked_ < between_looks) return {};
  looked_ = now;
  if (const Status status = calls_ ? comm_->check() : Status(); !status.ok()) {
    under_way();
    stuck_ = Stuck{instruction(), status.error()};
  } else if (!under_way()) {
    since_ = now;
  } else if (now - since_ > timeout_) {
    stuck_ = Stuck{instruction(), communication_error(too_long(*comm_, timeout_))};
  }
  return stuck_ ? Status(stuck_->error) : Status();
}

}  // namespace lancet::runtime
