// Small training runs for tests.
#pragma once
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "doubles/inproc.h"
#include "lancet/config/config.h"
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

// Rank 0's records of `steps` steps on `ranks` ranks that are threads; `prepare` is called with each rank's trainer
// first. costs: those that plans are made with; none: measured ones.
inline std::vector<run::StepRecord> run_steps(const config::Config& config, int ranks, int steps,
                                              const std::function<void(train::Trainer&, int rank)>& prepare = {},
                                              const cost::Costs* costs = nullptr) {
  std::vector<run::StepRecord> records;
  const Status status = comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, {.local_ranks = ranks, .costs = costs}));
    if (prepare) prepare(*trainer, world.rank());
    for (int step = 0; step < steps; ++step) {
      LANCET_ASSIGN(const run::StepRecord record, trainer->step(step));
      if (world.rank() == 0) records.push_back(record);
    }
    return {};
  });
  if (!status.ok()) throw InternalError(status.error().message);
  return records;
}

}  // namespace lancet::test
