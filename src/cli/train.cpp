#include "commands.h"
#include "lancet/train/agree.h"
#include "lancet/train/trainer.h"
#include "load_config.h"

namespace lancet::cli {

void add_train(CLI::App& app, Selection& selection) {
  CLI::App* command = app.add_subcommand("train", "Train a model: mpirun -np 2 lancet train configs/quickstart.json");
  auto arguments = add_config_arguments(*command);
  auto run_dir = std::make_shared<std::string>();
  command->add_option("--run-dir", *run_dir, "Folder for config.json, plan.ir and metrics.jsonl (log.run_dir)")
      ->type_name("DIR");
  auto plan = std::make_shared<std::string>();
  command->add_option("--plan", *plan, "Run this plan (lancet plan --out) in place of making one as overlap.* says")
      ->type_name("FILE");
  command->callback([arguments, run_dir, plan, &selection] {
    selection.ranked = [arguments, run_dir, plan](comm::Communicator& world, int local_ranks) -> Status {
      LANCET_ASSIGN(config::Config config, load_config(*arguments, world));
      if (!run_dir->empty()) config.log.run_dir = *run_dir;
      return train::train(config, world,
                          {.local_ranks = local_ranks, .default_profile = default_profile(), .plan_file = *plan});
    };
  });
}

}  // namespace lancet::cli
