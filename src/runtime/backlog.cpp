#include "backlog.h"

#include <atomic>

#include "lancet/backend/device.h"

namespace lancet::runtime {

void Backlog::start() {
  turn_ = 0;
  marked_ = queue_->commands();
}

Status Backlog::limit() {
  if (queue_->commands() - marked_ < between_marks) return {};
  backend::Flag* const mark = marks_[turn_ % 2];
  std::atomic_ref(*mark).store(0, std::memory_order_relaxed);  // the stream passed it before the last call returned
  LANCET_TRY(queue_->signal(mark));
  marked_ = queue_->commands();
  return ++turn_ > 1 ? backend::wait_for_flag(marks_[turn_ % 2], *queue_) : Status();
}

}  // namespace lancet::runtime
