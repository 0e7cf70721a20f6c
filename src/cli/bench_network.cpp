// lancet bench network: measures the network between the ranks, alone and while a thread computes, and the compute time
// that communication costs.
#include <fmt/format.h>

#include <algorithm>

#include "bench.h"
#include "lancet/backend/cpu/parallel.h"
#include "lancet/comm/collect.h"
#include "lancet/comm/network_check.h"
#include "lancet/profiler/interference.h"
#include "numbers.h"

namespace lancet::cli {
namespace {

constexpr double seconds_per_row = 1;

struct Arguments {
  int threads = 0;
  double min_mb = 0.001, max_mb = 16;
};

void print_row(comm::Communicator& world, std::string_view operation, std::size_t bytes,
               const profiler::CallCost& cost) {
  if (world.rank() != 0) return;
  const double mb = double(bytes) * 1e-6;
  fmt::print("{:<11} {:>10.3f} {:>10.3f} {:>8.1f} {:>10.3f} {:>10.3f} {:>9.3f} {:>10.3f}\n", operation, mb,
             cost.alone_ms, mb / cost.alone_ms * 1e3, cost.beside_ms, cost.core_ms, cost.core_ms / mb,
             cost.cpu_ms / mb);
  std::fflush(stdout);
}

Status sweep(comm::Communicator& world, comm::Communicator& reduce, int threads, const Arguments& arguments) {
  if (world.rank() == 0)
    fmt::print("{:<11} {:>10} {:>10} {:>8} {:>10} {:>10} {:>9} {:>10}\n", "", "MB", "alone ms", "MB/s", "beside ms",
               "core ms", "core/MB", "cpu/MB");
  profiler::ComputeLoop loop(threads);
  for (double bytes = arguments.min_mb * 1e6; bytes <= arguments.max_mb * 1e6; bytes *= 4) {
    comm::AllToAll all_to_all_call(world, static_cast<std::size_t>(bytes));
    LANCET_ASSIGN(const auto all_to_all, loop.measure(
                                             world, [&] { return all_to_all_call(world); }, seconds_per_row));
    print_row(world, "all_to_all", all_to_all_call.bytes(), all_to_all);
    std::vector<float> vector(static_cast<std::size_t>(bytes) / sizeof(float));
    LANCET_ASSIGN(const auto all_reduce, loop.measure(
                                             reduce, [&] { return reduce.all_reduce_sum(vector); }, seconds_per_row));
    print_row(world, "all_reduce", vector.size() * sizeof(float), all_reduce);
  }
  return {};
}

Status bench_network(comm::Communicator& world, int local_ranks, const Arguments& arguments) {
  if (world.size() == 1) return config_error("bench network: expected several ranks, as by mpirun -np 2, found one");
  const int threads = arguments.threads > 0 ? arguments.threads : std::max(1, backend::cpu::cores() / local_ranks);
  LANCET_ASSIGN(const auto reduce, world.duplicate());
  LANCET_ASSIGN(const comm::NetworkReport network, comm::measure_network(world));
  if (world.rank() == 0)
    fmt::print("{}; compute stream: {} thread{}\n", comm::to_string(network), threads, threads == 1 ? "" : "s");
  LANCET_TRY(sweep(world, *reduce, threads, arguments));
  LANCET_ASSIGN(const profiler::NetworkCosts costs, profiler::measure_interference(world, *reduce, threads));
  if (world.rank() == 0)
    fmt::print(
        "at {:.2f} MB: core time of an all_to_all {:.3f} ms + {:.3f} ms/MB, of an all_reduce {:.3f} ms + {:.3f} ms/MB; "
        "speed of the network beside computation {:.2f}, "
        "of each communication stream beside the other {:.2f} (measured in {:.1f} s)\n",
        double(costs.bytes) * 1e-6, costs.all_to_all.per_message_ms, costs.all_to_all.per_mb_ms,
        costs.all_reduce.per_message_ms, costs.all_reduce.per_mb_ms, costs.interference.network_beside_compute,
        costs.interference.network_beside_network, costs.seconds);
  return {};
}

}  // namespace

void add_bench_network(CLI::App& bench, Selection& selection) {
  CLI::App* command = bench.add_subcommand(
      "network", "Time of messages, alone and beside computation: mpirun -np 2 lancet bench network --max-mb 4");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("--max-mb", arguments->max_mb, "Largest message, in 10^6 bytes that a rank sends")
      ->capture_default_str()
      ->check(between(0.001, 1000.0));
  command->add_option("--min-mb", arguments->min_mb, "Smallest message; each is four times the previous one")
      ->capture_default_str()
      ->check(between(0.0001, 1000.0));
  command->add_option("--threads", arguments->threads, "Threads of the compute stream; 0: the cores of a rank")
      ->capture_default_str()
      ->check(whole_between(0, 1024));
  command->footer(
      "MB: what a rank sends to all others together (all_to_all), or the size of the vector (all_reduce).\n"
      "alone: nothing computes. beside: a thread computes all the time.\n"
      "core: delay of that thread for one call, mean over the ranks.\n"
      "cpu: processor time of everything but that thread's work; unlike core, it is reliable on a busy machine, too.");
  command->callback([arguments, &selection] {
    selection.ranked = [arguments](comm::Communicator& world, int local_ranks) {
      return bench_network(world, local_ranks, *arguments);
    };
  });
}

}  // namespace lancet::cli
