// The allocation limit of a reader: a number of bytes per byte of its input, and a constant besides. Exceeding it ends
// the run like a crash.
#pragma once
#include <sanitizer/allocator_interface.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace lancet::test {

class AllocationLimit {
 public:
  // a_byte: bytes for each of the input's `size` bytes; besides: bytes that do not depend on the input.
  AllocationLimit(std::size_t size, std::size_t a_byte, std::size_t besides = 1 << 20) {
    static const int installed = __sanitizer_install_malloc_and_free_hooks(allocated, freed);
    if (!installed) std::abort();
    in_use = 0;
    most = size * a_byte + besides;
  }
  ~AllocationLimit() { most = none; }
  AllocationLimit(const AllocationLimit&) = delete;
  AllocationLimit& operator=(const AllocationLimit&) = delete;

 private:
  static constexpr std::size_t none = ~std::size_t{0};
  static inline std::atomic<std::size_t> most = none;
  static inline std::atomic<std::ptrdiff_t> in_use = 0;  // since the limit began; below 0 after older memory is freed

  static void allocated(const volatile void*, std::size_t bytes) {
    const std::size_t limit = most;
    if (limit == none) return;
    const std::ptrdiff_t now = in_use += static_cast<std::ptrdiff_t>(bytes);
    if (bytes <= limit && (now < 0 || static_cast<std::size_t>(now) <= limit)) return;
    most = none;  // the report allocates, too
    std::fprintf(stderr, "ERROR: %zu bytes, %td in all, for an input that allows %zu\n", bytes, now, limit);
    std::abort();
  }
  static void freed(const volatile void* memory) {
    if (most != none) in_use -= static_cast<std::ptrdiff_t>(__sanitizer_get_allocated_size(const_cast<void*>(memory)));
  }
};

}  // namespace lancet::test
