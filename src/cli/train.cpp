#include "commands.h"
#include "lancet/base/log.h"
#include "lancet/comm/collect.h"
#include "lancet/train/trainer.h"
#include "load_config.h"
#include "signals.h"

namespace lancet::cli {

void add_train(CLI::App& app, Selection& selection) {
  CLI::App* command = app.add_subcommand("train", "Train a model: mpirun -np 2 lancet train configs/quickstart.json");
  auto arguments = add_config_arguments(*command);
  auto run_dir = std::make_shared<std::string>();
  command->add_option("--run-dir", *run_dir, "Folder for config.json, plan.ir and metrics.jsonl (log.run_dir)")
      ->type_name("DIR")
      ->take_last();  // as with --set, so that a script can add one of its own
  auto plan = std::make_shared<std::string>();
  command->add_option("--plan", *plan, "Run this plan (lancet plan --out); default: plan as overlap.* says")
      ->type_name("FILE");
  auto resume = std::make_shared<std::string>(), init_from = std::make_shared<std::string>();
  command
      ->add_option("--resume", *resume,
                   "Resume from this checkpoint: step-000100 of this run, or its folder; default: the run's newest "
                   "complete one")
      ->type_name("STEP");
  command
      ->add_option("--init-from", *init_from,
                   "Start with the weights of this run or checkpoint, if the run has no checkpoints of its own")
      ->type_name("DIR");
  command->callback([arguments, run_dir, plan, resume, init_from, &selection] {
    log::info_to_stdout();
    selection.timeout = configured_timeout(*arguments);
    selection.ranked = [arguments, run_dir, plan, resume, init_from](comm::Communicator& world,
                                                                     int local_ranks) -> Status {
      LANCET_ASSIGN(config::Config config, load_config(*arguments, world));
      LANCET_TRY(comm::agree_on(world, "the same --resume and --init-from", *resume + '\n' + *init_from));
      if (!run_dir->empty()) config.log.run_dir = *run_dir;
      return train::train(config, world,
                          {.local_ranks = local_ranks,
                           .profile_folder = profile_folder(),
                           .plan_file = *plan,
                           .resume = *resume,
                           .init_from = *init_from,
                           .stop = &catch_stop_signals(world.rank() == 0)});
    };
  });
}

}  // namespace lancet::cli
