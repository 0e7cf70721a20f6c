#include "from.h"
#include "numbers.h"

namespace lancet::cli {

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
