// RunState: what the parts of a run share.
#pragma once
#include <memory>
#include <string>

#include "lancet/base/hash.h"
#include "lancet/data/batches.h"
#include "lancet/ir/plan.h"
#include "lancet/run/resume_point.h"
#include "lancet/train/trainer.h"

namespace lancet::train {

struct RunState {
  const config::Config asked;  // the user's config
  config::Config config;       // as it runs
  comm::Communicator& world;
  const TrainerOptions& options;
  data::TokenizerId tokenizer;  // of the tokens; if they name none, of the checkpoint that the run started from
  run::Position position;
  std::unique_ptr<Trainer> trainer;
  std::string plan_hash;  // of the trainer's plan

  RunState(const config::Config& config, comm::Communicator& world, const TrainerOptions& options)
      : asked(config), config(config), world(world), options(options) {}

  bool is_rank0() const { return world.rank() == 0; }
  checkpoint::FileSystem& files() const { return options.files ? *options.files : checkpoint::disk(); }
  bool can_save() const { return config.holds_model(); }
  void note_plan() { plan_hash = hex(hash64(ir::print(trainer->executor().plan()))); }
};

}  // namespace lancet::train
