// Each host thread that calls parallel_for has a team of helper threads, made at first use. A call publishes a job by
// raising an epoch counter, which the helpers watch; the caller runs its own range and waits until the count of busy
// helpers is zero. Waiting threads spin for a short time and then sleep on the atomic variable. A range depends only on
// the member's index, so results do not depend on timing.
#include "lancet/backend/cpu/parallel.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "lancet/base/check.h"

namespace lancet::backend::cpu {
namespace {

// Time that a waiting thread spins before it sleeps. Kernels of a step follow one another within microseconds, and
// waking a sleeping thread takes tens of microseconds; but a thread that spins for long occupies a core that another
// one needs. With one of two cores used by another process, OpenMP's team (which spins for milliseconds) ran a step in
// 1100 ms, a team that hardly spins in 185 ms, a single thread in 179 ms (4 layers, n_embd 256, bf16).
constexpr auto patience = std::chrono::microseconds(30);

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

// Returns when `word` is no longer `old`.
template <class T>
void await_change(const std::atomic<T>& word, T old) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  do {
    for (int i = 0; i < 32; ++i) {
      if (word.load(std::memory_order_acquire) != old) return;
      relax();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  word.wait(old, std::memory_order_acquire);
}

struct Job {
  std::int64_t n = 0, grain = 1, team = 1;
  detail::RangeFunction function = nullptr;
  void* object = nullptr;

  void run(std::int64_t member) const {
    const std::int64_t grains = (n + grain - 1) / grain;
    const std::int64_t begin = grains * member / team * grain;
    const std::int64_t end = std::min(grains * (member + 1) / team * grain, n);
    if (member < team && begin < end) function(object, begin, end);
  }
};

thread_local bool in_region = false;

// The helpers of one host thread.
class Team {
 public:
  explicit Team(int members) {
    helpers_.reserve(static_cast<std::size_t>(members));
    int member = 1;
    try {
      for (; member < members; ++member) helpers_.emplace_back([this, member] { help(member); });
    } catch (const std::system_error& error) {
      stop();
      throw std::system_error(error.code(), fmt::format("thread {} of the {} that compute", member + 1, members));
    }
  }
  ~Team() { stop(); }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int members() const { return static_cast<int>(helpers_.size()) + 1; }

  void run(const Job& job) {
    job_ = job;
    busy_.store(static_cast<int>(helpers_.size()), std::memory_order_relaxed);
    publish();
    in_region = true;
    job.run(0);
    in_region = false;
    for (int left = busy_.load(std::memory_order_acquire); left != 0; left = busy_.load(std::memory_order_acquire))
      await_change(busy_, left);
  }

 private:
  void stop() {
    stopping_ = true;
    publish();
  }
  void publish() {
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
  }

  void help(int member) {
    in_region = true;
    for (std::uint32_t seen = 0;; ++seen) {
      await_change(epoch_, seen);
      if (stopping_) return;
      job_.run(member);
      if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_one();
    }
  }

  Job job_;                // written before epoch_ is raised, read after
  bool stopping_ = false;  // likewise
  std::atomic<std::uint32_t> epoch_{0};
  std::atomic<int> busy_{0};
  std::vector<std::jthread> helpers_;  // last: they use the members above
};

thread_local int thread_count = 0;  // 0: not set yet
thread_local std::optional<Team> own_team;

Team& team_of(int members) {
  if (!own_team || own_team->members() != members) own_team.emplace(members);
  return *own_team;
}

}  // namespace

void set_threads(int count) {
  LANCET_CHECK(count >= 1, "a stream computes on at least 1 thread, not {}", count);
  thread_count = count;
}

int threads() {
  if (in_region) return 1;
  if (thread_count == 0) thread_count = cores();
  return thread_count;
}

// Reads the affinity, because hardware_concurrency() counts all cores of the machine (glibc 2.36).
int cores() {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

namespace detail {

void parallel_ranges(std::int64_t n, std::int64_t grain, RangeFunction function, void* object) {
  if (n <= 0) return;
  grain = std::max<std::int64_t>(grain, 1);
  const int members = threads();
  const std::int64_t team = std::min<std::int64_t>(members, (n + grain - 1) / grain);
  if (team <= 1) return function(object, 0, n);
  team_of(members).run({n, grain, team, function, object});
}

}  // namespace detail

}  // namespace lancet::backend::cpu
