// Memory of a rank, on the host or on a device: owned (Block) or not (Memory).
#pragma once
#include <cstddef>
#include <span>
#include <utility>

#include "lancet/backend/cpu/buffer.h"
#include "lancet/backend/device.h"

namespace lancet::runtime {

// A range of memory that something else owns.
struct Memory {
  std::byte* start = nullptr;
  std::size_t bytes = 0;

  void* data() const { return start; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(start);
  }
  template <class T>
  std::span<T> span() const {
    return {as<T>(), bytes / sizeof(T)};
  }
};

// Owns memory of a device, of the host, or of the host and page-locked for a device. Page-locked memory is zero at
// first; other contents are undefined.
class Block {
 public:
  Block() = default;
  static Block on_host(std::size_t bytes);  // throws std::bad_alloc
  // Addresses of the host that hold zeros; a page takes memory once it is written. Throws std::bad_alloc.
  static Block reserved(std::size_t bytes);
  static Result<Block> on_device(backend::Device& device, std::size_t bytes) { return of(device, bytes, false); }
  static Result<Block> page_locked(backend::Device& device, std::size_t bytes) { return of(device, bytes, true); }
  ~Block();
  Block(Block&& other) noexcept { swap(other); }
  Block& operator=(Block&& other) noexcept {
    swap(other);
    return *this;
  }

  const Memory& memory() const { return memory_; }
  std::byte* start() const { return memory_.start; }
  std::size_t bytes() const { return memory_.bytes; }

 private:
  static Result<Block> of(backend::Device& device, std::size_t bytes, bool locked);
  void swap(Block& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(host_, other.host_);
    std::swap(device_, other.device_);
    std::swap(locked_, other.locked_);
    std::swap(reserved_, other.reserved_);
  }
  Memory memory_;
  backend::cpu::Buffer host_;
  backend::Device* device_ = nullptr;
  bool locked_ = false, reserved_ = false;
};

}  // namespace lancet::runtime
