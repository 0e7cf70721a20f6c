// The CONFIG argument and --set, shared by the commands that take them.
#pragma once
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"

namespace lancet::cli {

struct ConfigArguments {
  std::string file;
  std::vector<std::string> overrides;
};

std::shared_ptr<ConfigArguments> add_config_arguments(CLI::App& command);
Result<config::Config> load_config(const ConfigArguments& arguments);
// As every rank reads it. Collective: an error of any rank is returned on all; from here on comm.timeout_s holds.
Result<config::Config> load_config(const ConfigArguments& arguments, comm::Communicator& world);

// How long the ranks may take to meet: the config's comm.timeout_s, but half a minute at least, since programs load
// from slow disks. The default's where the config has a fault, which is told later.
std::chrono::milliseconds start_timeout(const ConfigArguments& arguments);

// Where costs are kept when overlap.profile is empty: lancet/profile.json in $XDG_CACHE_HOME or else ~/.cache (the XDG
// base directories). Empty without a home: then nothing is kept.
std::string default_profile();

}  // namespace lancet::cli
