// StepFlags: the flags of a step, in page-locked memory: those of the plan, one for the copied inputs, and one for the
// end of each stream.
#pragma once
#include <atomic>

#include "device_stream.h"
#include "lancet/backend/device.h"
#include "lancet/runtime/block.h"

namespace lancet::runtime {

class StepFlags {
 public:
  // planned: number of flags of the plan.
  Status allocate(std::size_t planned, backend::Device& device) {
    planned_ = planned;
    LANCET_ASSIGN(memory_, Block::page_locked(device, count() * sizeof(backend::Flag)));
    return {};
  }
  backend::Flag* planned(std::size_t number) const { return memory_.memory().as<backend::Flag>() + number; }
  backend::Flag* inputs() const { return planned(planned_); }
  backend::Flag* end(std::size_t stream) const { return planned(planned_ + 1 + stream); }
  // 0 starts a step, when all device streams are idle; 1 releases every device stream that waits.
  void write_all(backend::Flag value) const {
    for (std::size_t i = 0; i < count(); ++i) std::atomic_ref(*planned(i)).store(value, std::memory_order_release);
  }

 private:
  std::size_t count() const { return planned_ + 1 + ir::stream_count; }

  std::size_t planned_ = 0;
  Block memory_;
};

}  // namespace lancet::runtime
