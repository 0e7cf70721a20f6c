// Small training runs for tests.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "doubles/inproc.h"
#include "good.h"
#include "lancet/config/config.h"
#include "lancet/ir/plan.h"
#include "lancet/train/trainer.h"
#include "small_model.h"

namespace lancet::test {

// The small model on synthetic tokens; nothing dropped; no auxiliary loss.
inline config::Config small_config() {
  config::Config c;
  c.model = small_model();
  c.model.capacity_factor = 4;
  c.model.router_aux_loss_coef = 0;
  c.train.seq_len = 16;
  c.train.micro_batch_size = 8;
  c.train.lr = 2e-3;
  c.train.clip_grad = 1;
  c.train.save_minutes = 0;
  c.data.synthetic = true;
  c.log.peak_tflops = 1;
  c.threads = 1;
  return c;
}

// The decisions of all gates in the last step (TrainerOptions::inspect): by layer, expert and slot (or drop) of every
// token of this rank, and the slots that the rank fills.
inline std::vector<std::vector<std::int32_t>> routes_of(train::Trainer& trainer) {
  std::vector<std::vector<std::int32_t>> routes;
  for (const ir::Output& output : trainer.executor().plan().program.outputs) {
    if (!output.name.starts_with("expert.")) continue;
    std::vector<std::int32_t>& route = routes.emplace_back();
    for (const char* what : {"expert.", "slot.", "filled."}) {
      const ops::TensorView view = trainer.executor().output(what + output.name.substr(7));
      route.insert(route.end(), view.as<std::int32_t>(), view.as<std::int32_t>() + view.elements());
    }
  }
  return routes;
}

// The bytes of tensors, by name.
using Tensors = std::map<std::string, std::vector<std::byte>>;

// What steps on ranks that are threads leave.
struct Ran {
  std::vector<run::StepRecord> records;                        // of rank 0
  std::vector<std::vector<std::vector<std::int32_t>>> routes;  // by rank, then by step and layer (RunOptions::inspect)
  std::vector<Tensors> parameters, states;                     // by rank
  ir::Plan plan;                                               // of rank 0
  std::string policy() const { return plan.header.text("policy"); }
};

struct RunOptions {
  const cost::Costs* costs = nullptr;  // that plans are made with; none: measured ones
  bool inspect = false;
  std::function<void(train::Trainer&, int rank)> prepare = {};  // before the first step
  std::function<void(int rank, int step)> before = {};          // each step
};

inline Ran run_of(const config::Config& config, int ranks, int steps, const RunOptions& options = {}) {
  Ran ran;
  ran.routes.resize(std::size_t(ranks));
  ran.parameters.resize(std::size_t(ranks));
  ran.states.resize(std::size_t(ranks));
  good(comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(const auto trainer,
                  train::Trainer::create(config, world,
                                         {.local_ranks = ranks, .costs = options.costs, .inspect = options.inspect}));
    const auto rank = std::size_t(world.rank());
    if (options.prepare) options.prepare(*trainer, world.rank());
    for (int step = 0; step < steps; ++step) {
      if (options.before) options.before(world.rank(), step);
      LANCET_ASSIGN(const run::StepRecord record, trainer->step(step));
      if (rank == 0) ran.records.push_back(record);
      for (auto& route : routes_of(*trainer)) ran.routes[rank].push_back(std::move(route));
    }
    for (const auto& [name, tensor] : trainer->store().all()) {
      const auto bytes = tensor.memory.span<const std::byte>();
      if (tensor.kind == ir::TensorKind::parameter) ran.parameters[rank][name] = {bytes.begin(), bytes.end()};
      if (tensor.kind == ir::TensorKind::state) ran.states[rank][name] = {bytes.begin(), bytes.end()};
    }
    if (rank == 0) ran.plan = trainer->executor().plan();
    return {};
  }));
  return ran;
}

// Rank 0's records.
inline std::vector<run::StepRecord> run_steps(const config::Config& config, int ranks, int steps,
                                              const std::function<void(train::Trainer&, int rank)>& prepare = {},
                                              const cost::Costs* costs = nullptr) {
  return run_of(config, ranks, steps, {.costs = costs, .prepare = prepare}).records;
}

}  // namespace lancet::test
