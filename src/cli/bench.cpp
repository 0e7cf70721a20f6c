#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <thread>
#include <vector>

#include "commands.h"
#include "lancet/backend/cpu/parallel.h"
#include "lancet/base/clock.h"
#include "lancet/base/files.h"
#include "lancet/comm/collect.h"
#include "lancet/comm/network_check.h"
#include "lancet/profiler/profiler.h"

namespace lancet::cli {

void add_bench(CLI::App& app, Selection& selection) {
  CLI::App* bench = app.add_subcommand("bench", "Benchmarks: lancet bench ops configs/bench-small.json");
  bench->require_subcommand(1);
  add_bench_network(*bench, selection);
  add_bench_policies(*bench, selection);
  add_bench_ops(*bench, selection);
}

namespace {

// Returns the first line that a command prints; empty if it fails.
std::string line_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  std::array<char, 128> buffer{};
  if (!pipe || !std::fgets(buffer.data(), buffer.size(), pipe.get())) return "";
  std::string line = buffer.data();
  while (!line.empty() && line.back() == '\n') line.pop_back();
  return line;
}

}  // namespace

// Asks git for the commit of the folder that holds the configs which the build tree links.
std::string commit() {
  std::error_code error;
  const std::filesystem::path configs =
      std::filesystem::canonical(program_path().parent_path() / "share/lancet/configs", error);
  if (error) return "unknown";
  const std::string git = "git -C " + shell_word(configs.parent_path().string());
  const std::string hash = line_of(git + " rev-parse --short=10 HEAD 2>/dev/null");
  if (hash.empty()) return "unknown";
  const bool clean = line_of(git + " status --porcelain -- src include configs CMakeLists.txt 2>/dev/null").empty();
  return clean ? hash : hash + " and changes";
}

// lancet bench network: measures the network between the ranks, alone and while a thread computes, and the compute time
// that communication costs; or single all-to-alls, each after an idle gap.
namespace {

constexpr double seconds_per_row = 1;

struct Arguments {
  int threads = 0;
  double min_mb = 0.001, max_mb = 16;
  std::vector<double> gaps_ms;  // not empty: all-to-alls after these gaps in place of the sweep
  int repeats = 5;
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

// This rank's milliseconds for one all-to-all that begins after this rank was idle for gap_ms.
Result<double> time_after_gap(comm::Communicator& world, comm::AllToAll& call, double gap_ms) {
  using milliseconds = std::chrono::duration<double, std::milli>;
  std::this_thread::sleep_for(milliseconds(gap_ms));
  const auto start = std::chrono::steady_clock::now();
  LANCET_TRY(call(world));
  return milliseconds(std::chrono::steady_clock::now() - start).count();
}

// The bytes that the ranks of a host send to other hosts in a call; with one host, to each other.
double bytes_a_host(const comm::Communicator& world, int local_ranks, const comm::AllToAll& call) {
  const int others = world.size() - 1, away = world.size() - local_ranks;
  return double(call.bytes()) * local_ranks * (away > 0 ? away : others) / others;
}

// The milliseconds of calls after each gap. Gaps take turns, so that a change of the machine's load meets all of them.
// Between two calls the ranks send nothing: the calls themselves keep them in step. A rank that begins early waits for
// the others, so a call's time is the mean over the ranks.
Result<std::vector<std::vector<double>>> times_after_gaps(comm::Communicator& world, comm::AllToAll& call,
                                                          const Arguments& arguments) {
  std::vector<std::vector<double>> times(arguments.gaps_ms.size());
  LANCET_TRY(call(world));  // connects, touches the memory, and brings the ranks into step
  for (int repeat = 0; repeat < arguments.repeats; ++repeat)
    for (std::size_t i = 0; i < times.size(); ++i) {
      LANCET_ASSIGN(const double ms, time_after_gap(world, call, arguments.gaps_ms[i]));
      times[i].push_back(ms);
    }
  for (std::vector<double>& of_gap : times)
    for (double& ms : of_gap) {
      LANCET_ASSIGN(ms, comm::mean(world, ms));
    }
  return times;
}

Status measure_gaps(comm::Communicator& world, int local_ranks, const Arguments& arguments) {
  if (world.rank() == 0)
    fmt::print("{:>10} {:>10} {:>10} {:>10} {:>10} {:>14}\n", "MB", "gap ms", "median ms", "least ms", "most ms",
               "Mbit/s a host");
  for (double bytes = arguments.min_mb * 1e6; bytes <= arguments.max_mb * 1e6; bytes *= 4) {
    comm::AllToAll call(world, static_cast<std::size_t>(bytes));
    LANCET_ASSIGN(const auto times, times_after_gaps(world, call, arguments));
    if (world.rank() != 0) continue;
    for (std::size_t i = 0; i < times.size(); ++i)
      fmt::print("{:>10.3f} {:>10.0f} {:>10.3f} {:>10.3f} {:>10.3f} {:>14.3f}\n", double(call.bytes()) * 1e-6,
                 arguments.gaps_ms[i], median(times[i]), std::ranges::min(times[i]), std::ranges::max(times[i]),
                 bytes_a_host(world, local_ranks, call) * 8e-3 / median(times[i]));
    std::fflush(stdout);
  }
  return {};
}

Status bench_network(comm::Communicator& world, int local_ranks, const Arguments& arguments) {
  if (world.size() == 1) return config_error("bench network: expected several ranks, as by mpirun -np 2, found one");
  if (!arguments.gaps_ms.empty()) return measure_gaps(world, local_ranks, arguments);
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
  add_number(*command, "--max-mb", arguments->max_mb, "Largest message, in 10^6 bytes that a rank sends",
             between(0.001, 1000.0));
  add_number(*command, "--min-mb", arguments->min_mb, "Smallest message; each is four times the previous one",
             between(0.0001, 1000.0));
  add_number(*command, "--threads", arguments->threads, "Threads of the compute stream; 0: the cores of a rank",
             whole_between(0, 1024));
  command
      ->add_option("--gaps", arguments->gaps_ms,
                   "Times all-to-alls alone, each after all ranks were idle for the given ms: --gaps 0,100,1000")
      ->delimiter(',')
      ->check(between(0.0, 60000.0));
  add_number(*command, "--repeats", arguments->repeats, "With --gaps: all-to-alls after each gap",
             whole_between(1, 10000));
  command->footer(
      "MB: what a rank sends to all others together (all_to_all), or the size of the vector (all_reduce).\n"
      "alone: nothing computes. beside: a thread computes all the time.\n"
      "core: delay of that thread for one call, mean over the ranks.\n"
      "cpu: processor time of everything but that thread's work; unlike core, it is reliable on a busy machine, too.\n"
      "Mbit/s a host: what the ranks of a host send to other hosts; with one host, to each other.");
  command->callback([arguments, &selection] {
    selection.ranked = [arguments](comm::Communicator& world, int local_ranks) {
      return bench_network(world, local_ranks, *arguments);
    };
  });
}

}  // namespace lancet::cli
