// lancet bench ops: where the time of a training step goes, and how much of it the device's ceilings do not explain.
#include "bench_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "lancet/base/clock.h"
#include "lancet/base/json.h"
#include "lancet/ops/catalogue.h"
#include "lancet/profiler/profiler.h"
#include "lancet/run/rank_device.h"
#include "lancet/run/step_costs.h"
#include "lancet/train/trainer.h"

namespace lancet::cli {
namespace {

// A row for each op and role, without work and times. row_of: by instruction.
std::vector<OpRow> make_rows(const ir::Program& program, std::vector<std::size_t>& row_of) {
  std::vector<OpRow> rows;
  std::map<std::pair<std::string, ir::Role>, std::size_t> known;
  for (const ir::Instruction& instruction : program.instructions) {
    const auto [it, fresh] = known.try_emplace({instruction.op, instruction.role}, rows.size());
    if (fresh)
      rows.push_back(
          {instruction.op, std::string(name(instruction.role)), std::string(name(instruction.stream)), 0, 0, 0, 0});
    ++rows[it->second].calls;
    row_of.push_back(it->second);
  }
  return rows;
}

// expert_rows: the share of the experts' rows that hold tokens; the attribute tokens counts those without drops.
void add_work(const ir::Program& program, double expert_rows, const std::vector<std::size_t>& row_of,
              std::vector<OpRow>& rows) {
  for (std::size_t i = 0; i < row_of.size(); ++i) {
    ir::Instruction instruction = program.instructions[i];
    if (ops::is_over_expert_rows(instruction))
      instruction.attributes.set(
          "tokens", std::int64_t(std::round(expert_rows * double(instruction.attributes.integer("tokens")))));
    const ops::Work work = ops::work(program, instruction);
    rows[row_of[i]].flops += work.flops;
    rows[row_of[i]].bytes += work.bytes;
  }
}

Result<Ceilings> measure_ceilings(const OpOptions& options, DType dtype, int threads) {
  if (!options.accelerator)
    return Ceilings{profiler::measure_product_peak(dtype, threads), profiler::measure_memory_bandwidth(threads)};
  Ceilings ceilings;
  LANCET_ASSIGN(ceilings.flops, profiler::measure_product_peak(*options.accelerator, dtype, options.product_size));
  LANCET_ASSIGN(ceilings.bandwidth,
                profiler::measure_memory_bandwidth(options.accelerator->device(), options.copied_bytes));
  return ceilings;
}

double lost_ms(const OpRow& row) { return row.ms - *row.floor_ms; }

// The sum of the rows that have a floor. One that is above its row's time counts as that time, so that it hides no time
// that other rows lose.
OpRow total_of(const std::vector<OpRow>& rows) {
  OpRow total{"total", "", "compute", 0, 0, 0, 0, 0.0};
  for (const OpRow& row : rows) {
    if (!row.floor_ms) continue;
    total.calls += row.calls;
    total.flops += row.flops;
    total.bytes += row.bytes;
    total.ms += row.ms;
    *total.floor_ms += std::min(*row.floor_ms, row.ms);
  }
  return total;
}

// rated: prints the rate that the row's floor is made of.
std::string line_of(const OpRow& row, const OpTimes& times, bool rated) {
  const bool product = row.flops * times.ceilings.bandwidth > row.bytes * times.ceilings.flops;
  const auto rate = [&](bool shown, double work) {
    return rated && shown && row.ms > 0 ? fmt::format("{:.1f}", work / row.ms * 1e-6) : std::string();
  };
  std::string text =
      fmt::format("{:<24} {:<9} {:<7} {:>6} {:>10.3f} {:>6.1f}% {:>10} {:>8}", row.op, row.role, row.stream, row.calls,
                  row.ms, 100 * row.ms / times.step_ms, rate(product, row.flops), rate(!product, row.bytes));
  if (row.floor_ms)
    text += fmt::format(" {:>10.3f} {:>7} {:>10.3f}{}", *row.floor_ms,
                        row.ms > 0 ? fmt::format("{:.0f}%", 100 * *row.floor_ms / row.ms) : "", lost_ms(row),
                        row.cached ? " c" : "");
  return text + "\n";
}

std::string text_of(const OpTimes& times, const OpOptions& options, DType dtype) {
  const bool device = options.accelerator != nullptr;
  std::string text =
      fmt::format("ceilings, {}: {:.1f} GFLOP/s ({}, {}^3 product), {:.1f} GB/s ({})\n", times.device,
                  times.ceilings.flops * 1e-9, name(dtype), device ? options.product_size : 1024,
                  times.ceilings.bandwidth * 1e-9, device ? "a large copy, read and written" : "x += y over 128 MB");
  text += fmt::format("median of {} steps of {:.1f} ms{}{}\n", options.steps, times.step_ms,
                      device ? fmt::format("; ops: of {} more steps, each op between two events", options.steps) : "",
                      times.expert_rows > 0
                          ? fmt::format("; experts get {:.1f}% of the rows without drops", 100 * times.expert_rows)
                          : "");
  text += fmt::format("{:<24} {:<9} {:<7} {:>6} {:>10} {:>7} {:>10} {:>8} {:>10} {:>7} {:>10}\n", "op", "role",
                      "stream", "calls", "ms/step", "share", "GFLOP/s", "GB/s", "floor ms", "of ms", "lost ms");
  for (const OpRow& row : times.rows) text += line_of(row, times, true);
  text += line_of(total_of(times.rows), times, false);
  return text +
         "floor: the longer of the row's FLOPs and its bytes at these ceilings; at most ms in the total. lost: ms - "
         "floor.\n"
         "c: the row's bytes pass faster than the ceiling, since a cache holds some, or since the kernel moves fewer: "
         "its floor is too high.\n";
}

nlohmann::ordered_json json_of(const OpRow& row) {
  const auto number_or_null = [&](double value) {
    return row.floor_ms ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
  };
  return {{"op", row.op},
          {"role", row.role},
          {"stream", row.stream},
          {"calls", row.calls},
          {"ms", row.ms},
          {"gflop", row.flops * 1e-9},
          {"mbyte", row.bytes * 1e-6},
          {"floor_ms", number_or_null(row.floor_ms.value_or(0))},
          {"lost_ms", number_or_null(row.floor_ms ? lost_ms(row) : 0)},
          {"cached", row.cached}};
}

std::string json_of(const OpTimes& times, int steps, DType dtype) {
  auto rows = nlohmann::ordered_json::array();
  for (const OpRow& row : times.rows) rows.push_back(json_of(row));
  const OpRow total = total_of(times.rows);
  return json_text(nlohmann::ordered_json{
             {"commit", commit()},
             {"device", times.device},
             {"dtype", name(dtype)},
             {"ceilings", {{"tflops", times.ceilings.flops * 1e-12}, {"gb_per_s", times.ceilings.bandwidth * 1e-9}}},
             {"steps", steps},
             {"step_ms", times.step_ms},
             {"expert_rows", times.expert_rows},
             {"rows", rows},
             {"total", {{"ms", total.ms}, {"floor_ms", *total.floor_ms}, {"lost_ms", lost_ms(total)}}}}) +
         "\n";
}

Status bench_ops(config::Config config, OpOptions options, bool json, comm::Communicator& world) {
  if (config.device == config::Device::emulated)
    return config_error("device: expected cpu or cuda, whose ops are measured, found emulated");
  const DType dtype = config.train.dtype;
  LANCET_ASSIGN(const auto accelerator, run::open_accelerator(config, world));
  options.accelerator = accelerator.get();
  LANCET_ASSIGN(const OpTimes times, measure_ops(std::move(config), options, world));
  if (world.rank() != 0) return {};
  return print(json ? json_of(times, options.steps, dtype) : text_of(times, options, dtype));
}

}  // namespace

void add_floors(std::vector<OpRow>& rows, const Ceilings& ceilings) {
  for (OpRow& row : rows) {
    if (row.stream != name(ir::Stream::compute)) continue;
    row.floor_ms = 1e3 * std::max(row.flops / ceilings.flops, row.bytes / ceilings.bandwidth);
    row.cached = row.bytes > ceilings.bandwidth * row.ms * 1e-3;
  }
  std::ranges::stable_sort(rows, std::greater(), [](const OpRow& row) {
    return std::pair(row.floor_ms.has_value(), row.ms - row.floor_ms.value_or(0));
  });
}

Result<OpTimes> measure_ops(config::Config config, const OpOptions& options, comm::Communicator& world) {
  if (config.data.train.empty()) config.data.synthetic = true;
  config.overlap.replan = 0;                                // another plan would have other instructions
  if (!config.log.peak_tflops) config.log.peak_tflops = 1;  // no MFU is printed, so the trainer need not measure it
  const int threads = run::threads_of(config, options.local_ranks);
  OpTimes times;
  times.device = options.accelerator ? options.accelerator->device().name()
                                     : fmt::format("{} thread{}", threads, threads == 1 ? "" : "s");
  LANCET_ASSIGN(times.ceilings, measure_ceilings(options, config.train.dtype, threads));
  LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world,
                                                           {.local_ranks = options.local_ranks,
                                                            .profile_folder = profile_folder(),
                                                            .accelerator = options.accelerator}));
  std::vector<std::size_t> row_of;
  const ir::Program& program = trainer->executor().plan().program;
  times.rows = make_rows(program, row_of);
  std::int64_t step = 0;
  // What a plan lists of the step before first runs in the second step.
  for (; step < 2; ++step) LANCET_TRY(trainer->step(step, train::Trainer::Border::open));
  std::vector<double> step_ms;
  std::vector<std::vector<double>> milliseconds(times.rows.size());  // by row and step
  for (int i = 0; i < options.steps; ++i) {
    LANCET_ASSIGN(const run::StepRecord record, trainer->step(step++, train::Trainer::Border::open));
    step_ms.push_back(record.step_ms);
    if (options.accelerator) {
      trainer->time_next_step();
      LANCET_TRY(trainer->step(step++, train::Trainer::Border::open));
    }
    times.expert_rows += trainer->kept_share() / options.steps;
    for (std::vector<double>& of_row : milliseconds) of_row.push_back(0);
    const auto spans = trainer->executor().spans();
    for (std::size_t at = 0; at < spans.size(); ++at)
      milliseconds[row_of[at]].back() += double(spans[at].end - spans[at].start) * 1e-6;
  }
  times.step_ms = median(step_ms);
  for (std::size_t row = 0; row < times.rows.size(); ++row) times.rows[row].ms = median(milliseconds[row]);
  add_work(program, times.expert_rows, row_of, times.rows);
  add_floors(times.rows, times.ceilings);
  return times;
}

void add_bench_ops(CLI::App& bench, Selection& selection) {
  CLI::App* command = bench.add_subcommand("ops",
                                           "Time of each op of a training step, and the least that the device's "
                                           "ceilings allow: lancet bench ops configs/bench-small.json");
  auto arguments = add_config_arguments(*command);
  auto options = std::make_shared<OpOptions>();
  auto json = std::make_shared<bool>();
  add_number(*command, "--steps", options->steps, "Steps to measure", whole_between(1, 100000));
  command->add_flag("--json", *json, "Print one JSON object");
  command->callback([arguments, options, json, &selection] {
    selection.timeout = configured_timeout(*arguments);
    selection.ranked = [arguments, options, json](comm::Communicator& world, int local_ranks) -> Status {
      LANCET_ASSIGN(config::Config config, load_config(*arguments, world));
      options->local_ranks = local_ranks;
      return bench_ops(std::move(config), *options, *json, world);
    };
  });
}

}  // namespace lancet::cli
