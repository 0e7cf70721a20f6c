#include "lancet/runtime/block.h"

#include <sys/mman.h>

#include <new>

namespace lancet::runtime {

Block Block::on_host(std::size_t bytes) {
  Block block;
  block.host_ = backend::cpu::Buffer::raw(bytes);
  block.memory_ = {block.host_.as<std::byte>(), bytes};
  return block;
}

Block Block::reserved(std::size_t bytes) {
  Block block;
  if (bytes == 0) return block;
  void* start = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) throw std::bad_alloc();
  ::madvise(start, bytes, MADV_NOHUGEPAGE);  // a huge page would take 2 MiB for each written byte
  block.memory_ = {static_cast<std::byte*>(start), bytes};
  block.reserved_ = true;
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
  if (reserved_) ::munmap(memory_.start, memory_.bytes);
  if (!device_) return;
  if (locked_)
    device_->free_host(memory_.start);
  else
    device_->free(memory_.start);
}

}  // namespace lancet::runtime
