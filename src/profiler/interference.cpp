// Measures how a call and a compute loop slow each other down. The loop repeats products of 256^3; it is first
// calibrated alone, in seconds of wall clock and of processor time per product. Then the loop runs until this rank's
// calls, on a thread of their own, have ended. The wall time beyond that of the loop's products is the delay of the
// compute stream, the processor time beyond theirs is the cost of the calls; the calls' time against a run alone is
// their slowdown.
//
// A small and a large message give a fixed cost per call and a cost per byte. Two calls on two streams at once give the
// share of the network that each gets.
#include "lancet/profiler/interference.h"

#include <algorithm>
#include <atomic>
#include <ctime>
#include <thread>
#include <vector>

#include "lancet/backend/cpu/buffer.h"
#include "lancet/backend/cpu/matmul.h"
#include "lancet/backend/cpu/parallel.h"
#include "lancet/base/clock.h"
#include "lancet/comm/collect.h"

namespace lancet::profiler {
namespace {

using Clock = std::chrono::steady_clock;
using Call = std::function<Status()>;

constexpr int interference_rounds = 4;
constexpr double network_seconds = 0.06;  // of the large message: long against a wake-up, short against a step

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double processor_seconds() {  // of the process, all threads
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

Status repeat(const Call& call, int times) {
  for (int i = 0; i < times; ++i) LANCET_TRY(call());
  return {};
}

// Seconds from when all ranks are ready until all have made `times` calls.
Result<double> time_calls(comm::Communicator& communicator, const Call& call, int times) {
  LANCET_TRY(communicator.barrier());
  const auto start = Clock::now();
  LANCET_TRY(repeat(call, times));
  return comm::largest(communicator, since(start));
}

// The average speed of two streams on one network when both are busy, relative to each alone. 0.5: they share the
// network; 1: each has a network of its own.
Result<double> beside_each_other(comm::Communicator& expert, const Call& on_expert, double expert_s,
                                 comm::Communicator& reduce, const Call& on_reduce, double reduce_s) {
  std::vector<double> speeds;
  for (int round = 0; round < 3; ++round) {
    LANCET_TRY(expert.barrier());
    const auto start = Clock::now();
    Status status;
    std::jthread stream([&] { status = on_reduce(); });
    const Status mine = on_expert();
    stream.join();
    LANCET_TRY(mine);
    LANCET_TRY(status);
    LANCET_ASSIGN(const double both, comm::largest(reduce, since(start)));
    speeds.push_back((expert_s + reduce_s) / 2 / both);
  }
  return std::clamp(median(speeds), 0.1, 1.0);
}

// The compute stream cannot lose more than the processor time spent, caches included.
double core_ms(const CallCost& cost) { return std::max(0.0, std::min(cost.core_ms, cost.cpu_ms)); }

constexpr std::size_t small_bytes = 64 << 10;

// The bytes that the network moves in network_seconds.
Result<std::size_t> representative_bytes(comm::Communicator& communicator) {
  constexpr double pilot_bytes = 256 << 10, most = 8 << 20;
  comm::AllToAll pilot(communicator, pilot_bytes);
  const Call call = [&] { return pilot(communicator); };
  LANCET_TRY(call());
  LANCET_ASSIGN(const double seconds, time_calls(communicator, call, 2));
  return static_cast<std::size_t>(std::clamp(pilot_bytes * 2 * network_seconds / seconds, pilot_bytes, most));
}

}  // namespace

struct ComputeLoop::State {
  explicit State(int thread_count)
      : threads(thread_count),
        product(backend::cpu::make_matmul({.m = n, .n = n, .k = n, .trans_b = true, .bias = {}})),
        a(backend::cpu::Buffer::zeroed(n * n * 4)),
        b(backend::cpu::Buffer::zeroed(n * n * 4)),
        c(backend::cpu::Buffer::zeroed(n * n * 4)) {}

  void multiply() { product->run(a.data(), b.data(), nullptr, c.data()); }

  // Measures the seconds per product, of the wall clock and of processor time, while no calls run.
  void calibrate(double seconds) {
    double products = 0;
    const double cpu = processor_seconds();
    const auto start = Clock::now();
    do {
      multiply();
      ++products;
    } while (since(start) < seconds);
    product_cpu = (processor_seconds() - cpu) / products;
    product_seconds = since(start) / products;  // the mean: other processes slow the products beside messages, too
  }

  static constexpr std::int64_t n = 256;  // fits a core's second-level cache; a product lasts a fraction of 1 ms
  const int threads;
  std::unique_ptr<backend::cpu::Matmul> product;
  backend::cpu::Buffer a, b, c;
  double product_seconds = 0, product_cpu = 0;
};

ComputeLoop::ComputeLoop(int threads) : state_(std::make_unique<State>(threads)) {}
ComputeLoop::~ComputeLoop() = default;

Result<CallCost> ComputeLoop::measure(comm::Communicator& communicator, const Call& call, double budget_s) {
  State& loop = *state_;
  backend::cpu::set_threads(loop.threads);
  LANCET_TRY(call());  // warms up: connects, touches the memory
  LANCET_ASSIGN(const double once, time_calls(communicator, call, 1));
  const int times = static_cast<int>(std::clamp(budget_s / (2 * interference_rounds) / once, 1.0, 1000.0));
  std::vector<double> alone, beside, core, cpu;
  for (int round = 0; round < interference_rounds; ++round) {
    LANCET_ASSIGN(const double quiet, time_calls(communicator, call, times));
    alone.push_back(quiet / times);
    loop.calibrate(0.03);
    LANCET_TRY(communicator.barrier());
    Status status;
    std::atomic<bool> done = false;
    double busy = 0;  // seconds until this rank's calls had ended
    const double cpu_before = processor_seconds();
    const auto start = Clock::now();
    std::jthread stream([&] {
      status = repeat(call, times);
      busy = since(start);
      done = true;
    });
    double products = 0;
    for (; !done; ++products) loop.multiply();
    const double late = since(start) - products * loop.product_seconds;
    const double used = processor_seconds() - cpu_before - products * loop.product_cpu;
    stream.join();
    LANCET_TRY(status);
    LANCET_ASSIGN(const double slowest, comm::largest(communicator, busy));
    LANCET_ASSIGN(const double mean_late, comm::mean(communicator, late));
    LANCET_ASSIGN(const double mean_used, comm::mean(communicator, used));
    beside.push_back(slowest / times);
    core.push_back(mean_late / times);
    cpu.push_back(mean_used / times);
  }
  return CallCost{median(alone) * 1e3, median(beside) * 1e3, median(core) * 1e3, median(cpu) * 1e3};
}

cost::CoreCost core_cost(const CallCost& small, double fewer_bytes, const CallCost& large, double more_bytes) {
  const double slope = std::max(0.0, (core_ms(large) - core_ms(small)) / (more_bytes - fewer_bytes));
  return {std::max(0.0, core_ms(small) - slope * fewer_bytes), slope * 1e6};
}

Result<NetworkCosts> measure_interference(comm::Communicator& expert, comm::Communicator& reduce, int threads,
                                          const std::function<Status()>& before_each) {
  const auto start = Clock::now();
  NetworkCosts costs;
  const double ranks = expert.size();
  if (ranks == 1) return costs;
  LANCET_ASSIGN(const std::size_t wanted, representative_bytes(expert));
  comm::AllToAll large_messages(expert, wanted);
  costs.bytes = large_messages.bytes();
  // An all-reduce moves 2 (ranks - 1) / ranks of its vector; this vector makes it move as many bytes as the all-to-all.
  std::vector<float> vector(static_cast<std::size_t>(double(costs.bytes) / 4 * ranks / (2 * (ranks - 1))));
  const Call on_expert = [&] { return large_messages(expert); };
  const Call on_reduce = [&] { return reduce.all_reduce_sum(vector); };

  ComputeLoop loop(threads);
  const auto measure = [&](comm::Communicator& communicator, const Call& call, double budget) -> Result<CallCost> {
    LANCET_TRY(before_each());
    return loop.measure(communicator, call, budget);
  };
  const double budget = 2 * interference_rounds * network_seconds;
  LANCET_ASSIGN(const CallCost all_to_all, measure(expert, on_expert, budget));
  LANCET_ASSIGN(const CallCost all_reduce, measure(reduce, on_reduce, budget));
  // Small messages give the cost of a message that does not depend on its size.
  comm::AllToAll small_messages(expert, small_bytes);
  std::vector<float> small_vector(small_bytes / 4);
  const Call small_on_expert = [&] { return small_messages(expert); };
  const Call small_on_reduce = [&] { return reduce.all_reduce_sum(small_vector); };
  LANCET_ASSIGN(const CallCost small_all_to_all, measure(expert, small_on_expert, budget / 2));
  LANCET_ASSIGN(const CallCost small_all_reduce, measure(reduce, small_on_reduce, budget / 2));
  costs.all_to_all = core_cost(small_all_to_all, double(small_messages.bytes()), all_to_all, double(costs.bytes));
  costs.all_reduce = core_cost(small_all_reduce, double(small_bytes), all_reduce, 4 * double(vector.size()));
  costs.interference.network_beside_compute = std::clamp(all_to_all.alone_ms / all_to_all.beside_ms, 0.1, 1.0);
  LANCET_ASSIGN(
      costs.interference.network_beside_network,
      beside_each_other(expert, on_expert, all_to_all.alone_ms * 1e-3, reduce, on_reduce, all_reduce.alone_ms * 1e-3));
  LANCET_ASSIGN(costs.seconds, comm::largest(expert, since(start)));
  return costs;
}

Status check_interrupted(const ProfilerOptions& options) {
  if (!options.interrupted) return {};
  bool ends = options.interrupted();
  if (options.world) {
    LANCET_ASSIGN(ends, comm::any(*options.world, ends));
  }
  return ends ? Status(Error{ExitCode::saved, "interrupted", true}) : Status();
}

}  // namespace lancet::profiler
