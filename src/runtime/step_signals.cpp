#include "step_signals.h"

#include <algorithm>

namespace lancet::runtime {

Status StepSignals::allocate(const ir::Plan& plan, const Addresses& addresses, backend::Device& device) {
  device_ = &device;
  for (std::size_t i = 0; i < plan.program.tensors.size(); ++i)
    if (plan.program.tensors[i].type.dtype == DType::signals && plan.offsets[i] >= 0)
      add(addresses.view({static_cast<std::int32_t>(i)}));
  if (!signals_.start) return {};
  LANCET_ASSIGN(on_device_, Block::on_device(device, sizeof(std::uint32_t)));
  LANCET_ASSIGN(on_host_, Block::page_locked(device, sizeof(std::uint32_t)));
  return {};
}

void StepSignals::add(const ops::TensorView& view) {
  auto* const start = static_cast<std::byte*>(view.data);
  std::byte* const end = start + ir::bytes(view.type);
  if (!signals_.start) signals_ = {start, 0};
  std::byte* const all_end = std::max(signals_.start + signals_.bytes, end);
  signals_.start = std::min(signals_.start, start);
  signals_.bytes = static_cast<std::size_t>(all_end - signals_.start);
}

Status StepSignals::begin_step(backend::Stream& queue) {
  const bool first = std::exchange(first_, false), overwritten = device_->changes_user(this) || first;
  if (!signals_.start) return {};
  if (overwritten) LANCET_TRY(queue.zero(signals_.start, signals_.bytes));
  ++*on_host_.memory().as<std::uint32_t>();
  return queue.copy(on_device_.start(), on_host_.start(), sizeof(std::uint32_t));
}

}  // namespace lancet::runtime
