#include "lancet/runtime/block.h"

namespace lancet::runtime {

Block Block::on_host(std::size_t bytes) {
  Block block;
  block.host_ = backend::cpu::Buffer::raw(bytes);
  block.memory_ = {block.host_.as<std::byte>(), bytes};
  return block;
}

Result<Block> Block::of(backend::Device& device, std::size_t bytes, bool locked) {
  Block block;
  if (bytes == 0) return block;
  LANCET_ASSIGN(block.memory_.start, locked ? device.allocate_host(bytes) : device.allocate(bytes));
  block.memory_.bytes = bytes;
  block.device_ = &device;
  block.locked_ = locked;
  return block;
}

Block::~Block() {
  if (!device_) return;
  if (locked_)
    device_->free_host(memory_.start);
  else
    device_->free(memory_.start);
}

}  // namespace lancet::runtime
