// A fake NCCL whose connections behave as a test sets them.
#pragma once
#include <nccl.h>

#include <atomic>

namespace lancet::test {

struct FakeNccl {
  std::atomic<bool> connects{true};              // false: some ranks never come
  std::atomic<ncclResult_t> state{ncclSuccess};  // of queued work
  std::atomic<bool> finalizes{true};             // false: some ranks never finalize
  std::atomic<int> finalized{0}, destroyed{0}, aborted{0}, sends{0}, receives{0}, sums{0};
  std::atomic<int> max_ctas{0}, min_ctas{0};
  std::atomic<bool> blocking{true};
  std::atomic<int> connected{0};
  // Windows: the rank without enough memory, the rank that NCCL refuses a window; counts of windows alive, opened,
  // stopped.
  std::atomic<int> no_memory_on{-1}, not_opened_on{-1}, windows{0}, opened{0}, stopped{0};
};
FakeNccl& fake_nccl();

}  // namespace lancet::test
