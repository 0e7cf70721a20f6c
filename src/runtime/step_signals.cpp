#include "step_signals.h"

namespace lancet::runtime {

Status StepSignals::allocate(const ir::Plan& plan, const Addresses& addresses, backend::Device& device) {
  device_ = &device;
  for (std::size_t i = 0; i < plan.program.tensors.size(); ++i)
    if (plan.program.tensors[i].type.dtype == DType::signals && plan.offsets[i] >= 0)
      signals_.push_back(addresses.view({static_cast<std::int32_t>(i)}));
  if (signals_.empty()) return {};
  LANCET_ASSIGN(on_device_, Block::on_device(device, sizeof(std::uint32_t)));
  LANCET_ASSIGN(on_host_, Block::page_locked(device, sizeof(std::uint32_t)));
  return {};
}

Status StepSignals::begin_step(backend::Stream& queue) {
  const bool first = std::exchange(first_, false), overwritten = device_->changes_user(this) || first;
  if (signals_.empty()) return {};
  if (overwritten)
    for (const ops::TensorView& view : signals_)
      LANCET_TRY(queue.zero(view.data, static_cast<std::size_t>(ir::bytes(view.type))));
  ++*on_host_.memory().as<std::uint32_t>();
  return queue.copy(on_device_.start(), on_host_.start(), sizeof(std::uint32_t));
}

}  // namespace lancet::runtime
