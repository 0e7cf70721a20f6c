// lancet bench checkpoint: compares saving and loading with a step's time and with plain reading of the disk.
#include <fmt/format.h>

#include "bench.h"
#include "lancet/base/shown.h"
#include "lancet/train/checkpoint_speed.h"
#include "load_config.h"
#include "numbers.h"

namespace lancet::cli {
namespace {

std::string table(const train::CheckpointSpeed& s, int ranks) {
  std::string text = fmt::format("checkpoint of {:.3f} GB, {} rank{}\n", s.gigabytes, ranks, ranks == 1 ? "" : "s");
  text += fmt::format("step               {:>10.1f} ms\n", s.step_ms);
  text += fmt::format("save delays it by  {:>10.1f} ms   {:.2f}% of a step\n", s.save_ms, 100 * s.save_ms / s.step_ms);
  text += fmt::format("until on the disk  {:>10.2f} s    {:.2f} GB/s\n", s.write_s, s.gigabytes / s.write_s);
  const char* cache = s.dropped ? "cache dropped before" : "may come from the cache";
  text += fmt::format("plain reading      {:>10.2f} GB/s ({})\n", s.read_gb_s, cache);
  text += fmt::format("load, checked      {:>10.2f} GB/s {:.0f}% of plain reading\n", s.load_gb_s,
                      100 * s.load_gb_s / s.read_gb_s);
  return text;
}

}  // namespace

void add_bench_checkpoint(CLI::App& bench, Selection& selection) {
  CLI::App* command = bench.add_subcommand(
      "checkpoint", "Time of saving and loading: lancet bench checkpoint configs/gpt2-s-moe.json --dir /mnt/disk");
  auto arguments = add_config_arguments(*command);
  auto options = std::make_shared<train::CheckpointSpeedOptions>();
  auto folder = std::make_shared<std::string>();
  command
      ->add_option(
          "--dir", *folder,
          "Folder on the disk to measure; the files are deleted at the end, or by the next run if this one is killed")
      ->required()
      ->type_name("DIR")
      ->check([](const std::string& path) {
        std::error_code ignored;
        return std::filesystem::is_directory(path, ignored) ? ""
                                                            : "expected a folder, found none called " + shown(path);
      });
  command->add_option("--steps", options->steps, "Training steps to measure")
      ->capture_default_str()
      ->check(whole_between(1, 1000));
  command->add_option("--rounds", options->rounds, "Saves, plain readings and loads to measure")
      ->capture_default_str()
      ->check(whole_between(1, 1000));
  command->add_flag("--cached", options->cached, "Leave the files in the system's cache, to measure the program alone");
  command->footer(
      "Numbers are medians, of the slowest rank. Plain reading reads the same files in blocks of 8 MiB, alternating "
      "with the loads.");
  command->callback([arguments, options, folder, &selection] {
    selection.timeout = configured_timeout(*arguments);
    selection.ranked = [arguments, options, folder](comm::Communicator& world, int local_ranks) -> Status {
      LANCET_ASSIGN(config::Config config, load_config(*arguments, world));
      options->folder = *folder;
      options->local_ranks = local_ranks;
      LANCET_ASSIGN(const auto speed, train::measure_checkpoint(std::move(config), world, *options));
      return world.rank() == 0 ? print(table(speed, world.size())) : Status();
    };
  });
}

}  // namespace lancet::cli
