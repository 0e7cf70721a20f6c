// --from, --dtype, --device and --threads, shared by the commands that load a trained model.
#pragma once
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "lancet/models/loaded_model.h"

namespace lancet::cli {

struct FromArguments {
  std::string from, dtype, device;
  int threads = 0;
  models::LoadOptions options(int local_ranks) const;
};
std::shared_ptr<FromArguments> add_from_arguments(CLI::App& command);
CLI::Option* add_from_option(CLI::App& command, std::string& from);

}  // namespace lancet::cli
