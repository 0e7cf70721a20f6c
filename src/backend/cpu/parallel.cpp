#include "lancet/backend/cpu/parallel.h"

#include <omp.h>

#include <algorithm>

#include "lancet/base/check.h"

namespace lancet::backend::cpu {

// OpenMP's own count is per calling thread, and oneDNN reads it too.
void set_threads(int count) {
  LANCET_CHECK(count >= 1, "a lane computes on at least 1 thread, not {}", count);
  omp_set_num_threads(count);
}

int threads() { return omp_in_parallel() ? 1 : omp_get_max_threads(); }

namespace detail {

void parallel_ranges(std::int64_t n, std::int64_t grain, RangeFunction function, void* object) {
  if (n <= 0) return;
  grain = std::max<std::int64_t>(grain, 1);
  const std::int64_t grains = (n + grain - 1) / grain;
  const std::int64_t team = std::min<std::int64_t>(threads(), grains);
  if (team <= 1) {
    function(object, 0, n);
    return;
  }
#pragma omp parallel num_threads(static_cast <int>(team))
  {
    // The runtime may give fewer threads than asked for: ranges are handed out, not assumed.
    const std::int64_t size = omp_get_num_threads();
    const std::int64_t me = omp_get_thread_num();
    const std::int64_t begin = grains * me / size * grain;
    const std::int64_t end = std::min(grains * (me + 1) / size * grain, n);
    if (begin < end) function(object, begin, end);
  }
}

}  // namespace detail

}  // namespace lancet::backend::cpu
