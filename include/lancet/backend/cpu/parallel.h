// Threads of the CPU backend. A rank's compute stream is one host thread, which sets the number of threads of its
// kernels once. The count belongs to the calling thread, so ranks that are threads of one process each have their own.
#pragma once
#include <cstdint>
#include <memory>
#include <type_traits>

namespace lancet::backend::cpu {

void set_threads(int count);  // for kernels started by the calling thread; at least 1
int threads();                // 1 inside a parallel region

// Number of cores that this process may use (its affinity, as taskset and mpirun's binding set it): at least 1.
int cores();

namespace detail {
using RangeFunction = void (*)(void* object, std::int64_t begin, std::int64_t end);
void parallel_ranges(std::int64_t n, std::int64_t grain, RangeFunction function, void* object);
}  // namespace detail

// Calls f(begin, end) on disjoint ranges that cover [0, n), at most one per thread, each (but the last) a multiple of
// `grain` long. Runs inline when one thread suffices. f must not throw. Returns when all ranges are done.
template <class F>
void parallel_for(std::int64_t n, std::int64_t grain, F&& f) {
  using Function = std::remove_reference_t<F>;
  detail::parallel_ranges(
      n, grain,
      [](void* object, std::int64_t begin, std::int64_t end) { (*static_cast<Function*>(object))(begin, end); },
      const_cast<void*>(static_cast<const void*>(std::addressof(f))));
}

}  // namespace lancet::backend::cpu
