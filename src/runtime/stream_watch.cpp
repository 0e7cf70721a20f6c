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
