#include "load_config.h"

#include <cstdlib>
#include <filesystem>

#include "lancet/comm/collect.h"
#include "lancet/planner/planner.h"
#include "numbers.h"

namespace lancet::cli {

std::string profile_folder() {
  const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  if (cache && *cache) return std::filesystem::path(cache) / "lancet";
  if (home && *home) return std::filesystem::path(home) / ".cache/lancet";
  return "";
}

std::shared_ptr<ConfigArguments> add_config_arguments(CLI::App& command) {
  auto arguments = std::make_shared<ConfigArguments>();
  command.add_option("config", arguments->file, "JSON file of the run's config")->required()->type_name("CONFIG");
  command.add_option("--set", arguments->overrides, "Set a field, for example --set train.lr=3e-4 (repeatable)")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->take_all();
  command.footer("Fields of CONFIG, with their defaults:\n" + config::describe());
  return arguments;
}

Result<config::Config> load_config(const ConfigArguments& arguments) {
  auto config = config::load(arguments.file, arguments.overrides);
  if (config.ok()) LANCET_TRY(planner::check_policy(config->overlap.policy));
  return config;
}

Result<config::Config> load_config(const ConfigArguments& arguments, comm::Communicator& world) {
  auto config = load_config(arguments);
  if (config.ok()) world.set_timeout(std::chrono::milliseconds(std::int64_t(config->comm.timeout_s * 1000)));
  LANCET_TRY(comm::agree(world, config.ok() ? Status() : Status(config.error())));
  return config;
}

std::chrono::milliseconds configured_timeout(const ConfigArguments& arguments) {
  std::error_code ignored;
  const bool again = std::filesystem::is_regular_file(arguments.file, ignored);  // a pipe can be read only once
  const auto config = again ? load_config(arguments) : Result<config::Config>(config::Config());
  const double seconds = config.ok() ? config->comm.timeout_s : config::Config().comm.timeout_s;
  return std::chrono::milliseconds(std::int64_t(seconds * 1000));
}

CLI::Option* add_from_option(CLI::App& command, std::string& from) {
  return command.add_option("--from", from, "A run folder (its newest complete checkpoint) or a checkpoint's folder")
      ->required()
      ->type_name("RUN");
}

std::shared_ptr<FromArguments> add_from_arguments(CLI::App& command) {
  auto arguments = std::make_shared<FromArguments>();
  add_from_option(command, arguments->from);
  command.add_option("--dtype", arguments->dtype, "fp32 or bf16; default: as the model was trained")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  command.add_option("--device", arguments->device, "cpu or cuda; default: as the model was trained")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command.add_option("--threads", arguments->threads, "Threads per rank; 0: its share of the cores")
      ->check(whole_between(0, 1024));
  return arguments;
}

models::LoadOptions FromArguments::options(int local_ranks) const {
  models::LoadOptions options{.local_ranks = local_ranks, .threads = threads, .dtype = {}};
  if (!dtype.empty()) options.dtype = dtype == "bf16" ? DType::bf16 : DType::f32;
  if (!device.empty()) options.device = device == "cuda" ? config::Device::cuda : config::Device::cpu;
  return options;
}

}  // namespace lancet::cli
