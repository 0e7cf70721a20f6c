// The step loop allocates nothing. This file counts every allocation of the test program.
#include <atomic>
#include <cstdlib>
#include <new>

#include "support.h"

namespace {
std::atomic<long> allocations{0};

void* counted(std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size ? size : 1)) return memory;
  throw std::bad_alloc();
}
void* counted(std::size_t size, std::align_val_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  const auto a = static_cast<std::size_t>(alignment);
  if (void* memory = std::aligned_alloc(a, (size + a - 1) / a * a)) return memory;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(std::size_t size) { return counted(size); }
void* operator new[](std::size_t size) { return counted(size); }
void* operator new(std::size_t size, std::align_val_t a) { return counted(size, a); }
void* operator new[](std::size_t size, std::align_val_t a) { return counted(size, a); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

using namespace lancet;
using namespace lancet::test;

TEST_CASE("a step allocates nothing") {
  FakeCommunicator expert(doubled), reduce(doubled);
  Run run(three_lanes, lanes(&expert, &reduce));
  const long before_first = allocations.load();
  REQUIRE(before_first > 0);  // the counter counts
  require_done(run.executor->run());
  long counts[3] = {};
  bool ok = true;
  double total = 0;
  for (long& count : counts) {
    const long before = allocations.load();
    for (int step = 0; step < 20; ++step) {
      ok = ok && run.executor->run().ok();
      total += run.executor->times().step;
    }
    count = allocations.load() - before;
  }
  REQUIRE(ok);
  REQUIRE(total > 0);
  for (long count : counts) REQUIRE(count == 0);
}
