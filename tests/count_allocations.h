// Counts every allocation of a test program; exactly one of its sources includes this header.
#pragma once
#include <atomic>
#include <cstdlib>
#include <new>

namespace lancet::test {

inline std::atomic<long> allocations{0};

inline void* counted_or_null(std::size_t size) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(size ? size : 1);
}
inline void* counted_or_null(std::size_t size, std::align_val_t alignment) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  const auto a = static_cast<std::size_t>(alignment);
  return std::aligned_alloc(a, (size + a - 1) / a * a);
}
template <class... Alignment>
void* counted(std::size_t size, Alignment... alignment) {
  if (void* memory = counted_or_null(size, alignment...)) return memory;
  throw std::bad_alloc();
}

}  // namespace lancet::test

// All forms are replaced: the sanitizers replace those that are left out, and would then report memory of one kind
// freed by the other.
#define NEW [[gnu::noinline]] void* operator
#define DELETE [[gnu::noinline]] void operator
using std::align_val_t, std::nothrow_t, std::size_t, lancet::test::counted, lancet::test::counted_or_null;
NEW new (size_t size) { return counted(size); }
NEW new[](size_t size) { return counted(size); }
NEW new (size_t size, align_val_t a) { return counted(size, a); }
NEW new[](size_t size, align_val_t a) { return counted(size, a); }
NEW new (size_t size, const nothrow_t&) noexcept { return counted_or_null(size); }
NEW new[](size_t size, const nothrow_t&) noexcept { return counted_or_null(size); }
NEW new (size_t size, align_val_t a, const nothrow_t&) noexcept { return counted_or_null(size, a); }
NEW new[](size_t size, align_val_t a, const nothrow_t&) noexcept { return counted_or_null(size, a); }
DELETE delete (void* memory) noexcept { std::free(memory); }
DELETE delete[](void* memory) noexcept { std::free(memory); }
DELETE delete (void* memory, size_t) noexcept { std::free(memory); }
DELETE delete[](void* memory, size_t) noexcept { std::free(memory); }
DELETE delete (void* memory, align_val_t) noexcept { std::free(memory); }
DELETE delete[](void* memory, align_val_t) noexcept { std::free(memory); }
DELETE delete (void* memory, size_t, align_val_t) noexcept { std::free(memory); }
DELETE delete[](void* memory, size_t, align_val_t) noexcept { std::free(memory); }
DELETE delete (void* memory, const nothrow_t&) noexcept { std::free(memory); }
DELETE delete[](void* memory, const nothrow_t&) noexcept { std::free(memory); }
DELETE delete (void* memory, align_val_t, const nothrow_t&) noexcept { std::free(memory); }
DELETE delete[](void* memory, align_val_t, const nothrow_t&) noexcept { std::free(memory); }
#undef NEW
#undef DELETE
