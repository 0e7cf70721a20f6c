// Pushes rows into the peers' memory on the host, as a kernel of several blocks does.
#pragma once
#include <vector>

#include "lancet/comm/row_push.h"

namespace lancet::test {

// One block: all threads find ranges, then all copy.
template <class Peers>
void push_rows(const comm::PushRows<Peers>& push, std::int64_t block, std::int64_t blocks, int threads) {
  using Push = comm::PushRows<Peers>;
  for (std::int64_t first = 0; first < push.runs(); first += Push::most_at_once) {
    std::vector<typename Push::Found> found(Push::most_at_once);  // a turn keeps no state of the turn before
    for (int thread = threads; thread-- > 0;) push.find(found.data(), first, block, thread, threads);
    for (int thread = 0; thread < threads; ++thread) push.copy(found.data(), first, block, blocks, thread, threads);
  }
}

}  // namespace lancet::test
