// An owned block of host memory: arenas, workspaces, packed operands.
#pragma once
#include <cstddef>
#include <span>
#include <utility>

namespace lancet::backend::cpu {

// Owns a block of memory, 64-byte aligned; blocks of 2 MiB and more are aligned to 2 MiB and ask for huge pages.
// Throws std::bad_alloc when the system is out of memory.
class Buffer {
 public:
  Buffer() = default;
  static Buffer zeroed(std::size_t bytes);
  static Buffer raw(std::size_t bytes);  // contents undefined; pages are mapped by the first write
  ~Buffer();
  Buffer(Buffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  void* data() const { return data_; }
  std::size_t size() const { return size_; }  // bytes
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  template <class T>
  std::span<T> span() const {
    return {as<T>(), size_ / sizeof(T)};
  }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace lancet::backend::cpu
