// The CONFIG argument and --set, shared by the commands that read a config.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/models/loaded_model.h"

namespace lancet::cli {

struct ConfigArguments {
  std::string file;
  std::vector<std::string> overrides;
};

std::shared_ptr<ConfigArguments> add_config_arguments(CLI::App& command);
Result<config::Config> load_config(const ConfigArguments& arguments);
// Collective: every rank reads the file, and an error on any rank is returned on all. Sets the communicator's timeout
// to comm.timeout_s.
Result<config::Config> load_config(const ConfigArguments& arguments, comm::Communicator& world);

// Returns the config's comm.timeout_s; the default's if the config is invalid, which is reported later, or a pipe.
std::chrono::milliseconds configured_timeout(const ConfigArguments& arguments);

// Returns the folder of the profile files that are used if overlap.profile is empty: lancet in $XDG_CACHE_HOME or else
// ~/.cache (the XDG base directories). Empty if there is no home folder; costs are not kept then.
std::string profile_folder();

// --from, --dtype, --device and --threads, shared by the commands that load a trained model.
struct FromArguments {
  std::string from, dtype, device;
  int threads = 0;
  models::LoadOptions options(int local_ranks) const;
};
std::shared_ptr<FromArguments> add_from_arguments(CLI::App& command);
CLI::Option* add_from_option(CLI::App& command, std::string& from);

}  // namespace lancet::cli
