// Counts every allocation of the test program that includes this, in one of its files.
#pragma once
#include <atomic>
#include <cstdlib>
#include <new>

namespace lancet::test {

inline std::atomic<long> allocations{0};

inline void* counted(std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size ? size : 1)) return memory;
  throw std::bad_alloc();
}
inline void* counted(std::size_t size, std::align_val_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  const auto a = static_cast<std::size_t>(alignment);
  if (void* memory = std::aligned_alloc(a, (size + a - 1) / a * a)) return memory;
  throw std::bad_alloc();
}

}  // namespace lancet::test

[[gnu::noinline]] void* operator new(std::size_t size) { return lancet::test::counted(size); }
[[gnu::noinline]] void* operator new[](std::size_t size) { return lancet::test::counted(size); }
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t a) { return lancet::test::counted(size, a); }
[[gnu::noinline]] void* operator new[](std::size_t size, std::align_val_t a) { return lancet::test::counted(size, a); }
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
