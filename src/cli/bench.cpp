#include <algorithm>
#include <map>

#include "bench.h"
#include "lancet/backend/cpu/parallel.h"
#include "lancet/base/median.h"
#include "lancet/ops/catalogue.h"
#include "lancet/planning/step_costs.h"
#include "lancet/profiler/peak.h"
#include "lancet/train/trainer.h"
#include "load_config.h"
#include "numbers.h"

namespace lancet::cli {
namespace {

// All instructions of one op and role.
struct OpRow {
  std::string op, role, stream;
  int calls = 0;
  double flops = 0, bytes = 0;       // per step
  std::vector<double> milliseconds;  // by step
};

std::vector<OpRow> make_rows(const ir::Program& program, std::vector<std::size_t>& row_of) {
  std::vector<OpRow> rows;
  std::map<std::pair<std::string, ir::Role>, std::size_t> known;
  for (const ir::Instruction& instruction : program.instructions) {
    const auto [it, fresh] = known.try_emplace({instruction.op, instruction.role}, rows.size());
    if (fresh)
      rows.push_back(
          {instruction.op, std::string(name(instruction.role)), std::string(name(instruction.stream)), 0, 0, 0, {}});
    OpRow& row = rows[it->second];
    const ops::Work work = ops::work(program, instruction);
    ++row.calls;
    row.flops += work.flops;
    row.bytes += work.bytes;
    row_of.push_back(it->second);
  }
  return rows;
}

struct Peak {
  double flops, bandwidth;  // FLOP/s and bytes/s
};

std::string table(std::vector<OpRow> rows, const Peak& peak, double step_ms) {
  std::sort(rows.begin(), rows.end(),
            [](const OpRow& a, const OpRow& b) { return median(a.milliseconds) > median(b.milliseconds); });
  std::string text = fmt::format("{:<24} {:<8} {:<8} {:>6} {:>10} {:>7} {:>10} {:>7} {:>8} {:>7}\n", "op", "role",
                                 "stream", "calls", "ms/step", "share", "GFLOP/s", "of peak", "GB/s", "of mem");
  for (const OpRow& row : rows) {
    const double ms = median(row.milliseconds), seconds = ms * 1e-3;
    const bool product = row.flops > 20 * row.bytes / 4;
    text += fmt::format("{:<24} {:<8} {:<8} {:>6} {:>10.3f} {:>6.1f}% {:>10} {:>7} {:>8} {:>7}\n", row.op, row.role,
                        row.stream, row.calls, ms, 100 * ms / step_ms,
                        product ? fmt::format("{:.1f}", row.flops / seconds * 1e-9) : "",
                        product ? fmt::format("{:.0f}%", 100 * row.flops / seconds / peak.flops) : "",
                        product ? "" : fmt::format("{:.1f}", row.bytes / seconds * 1e-9),
                        product ? "" : fmt::format("{:.0f}%", 100 * row.bytes / seconds / peak.bandwidth));
  }
  return text;
}

Status bench_ops(config::Config config, int steps, comm::Communicator& world, int local_ranks) {
  if (config.data.train.empty()) config.data.synthetic = true;
  LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, {.local_ranks = local_ranks}));
  const int threads = planning::threads_of(config, local_ranks);
  const Peak peak{profiler::measure_product_peak(config.train.dtype, threads),
                  profiler::measure_memory_bandwidth(threads)};
  const ir::Program& program = trainer->executor().plan().program;
  std::vector<std::size_t> row_of;
  std::vector<OpRow> rows = make_rows(program, row_of);
  std::vector<double> step_ms;
  for (int step = 0; step <= steps; ++step) {
    LANCET_ASSIGN(const run::StepRecord record, trainer->step(step));
    if (step == 0) continue;  // warm-up
    step_ms.push_back(record.step_ms);
    for (OpRow& row : rows) row.milliseconds.push_back(0);
    const auto spans = trainer->executor().spans();
    for (std::size_t i = 0; i < spans.size(); ++i)
      rows[row_of[i]].milliseconds.back() += double(spans[i].end - spans[i].start) * 1e-6;
  }
  if (world.rank() != 0) return {};
  return print(
      fmt::format("ceilings, {} thread{}: {:.1f} GFLOP/s ({}, 1024^3 product), {:.1f} GB/s (x += y over 128 MB)\n",
                  threads, threads == 1 ? "" : "s", peak.flops * 1e-9,
                  config.train.dtype == DType::bf16 ? "bf16" : "fp32", peak.bandwidth * 1e-9) +
      fmt::format(
          "rates of experts count the rows that they get if no token is dropped; median of {} steps of {:.1f} ms\n",
          steps, median(step_ms)) +
      table(std::move(rows), peak, median(step_ms)));
}

}  // namespace

void add_bench(CLI::App& app, Selection& selection) {
  CLI::App* bench = app.add_subcommand("bench", "Benchmarks: lancet bench ops configs/bench-small.json");
  bench->require_subcommand(1);
  add_bench_network(*bench, selection);
  add_bench_policies(*bench, selection);
  add_bench_sweep(*bench, selection);
  add_bench_import_nccl(*bench, selection);
  add_bench_checkpoint(*bench, selection);
  CLI::App* command = bench->add_subcommand("ops",
                                            "Time of each op of a training step, and its share of the device's peak: "
                                            "lancet bench ops configs/bench-small.json");
  auto arguments = add_config_arguments(*command);
  auto steps = std::make_shared<int>(10);
  command->add_option("--steps", *steps, "Steps to measure")->capture_default_str()->check(whole_between(1, 100000));
  command->callback([arguments, steps, &selection] {
    selection.timeout = configured_timeout(*arguments);
    selection.ranked = [arguments, steps](comm::Communicator& world, int local_ranks) -> Status {
      LANCET_ASSIGN(config::Config config, load_config(*arguments, world));
      return bench_ops(config, *steps, world, local_ranks);
    };
  });
}

}  // namespace lancet::cli
