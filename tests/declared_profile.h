// A file of costs for a config without measuring: DeclaredCosts supply every op that its planning asks about.
#pragma once
#include "declared_costs.h"
#include "lancet/base/check.h"
#include "lancet/cost/profile.h"
#include "lancet/planning/step_costs.h"

namespace lancet::test {

// A CPU that no machine has.
inline cost::Machine declared_machine(int ranks, int hosts) {
  return {{"Declared CPU", "none", 1, (ranks + hosts - 1) / hosts, "0123456789abcdef"},
          {ranks > 1 ? "mpi" : "self", ranks, hosts}};
}

inline cost::Profile declared_profile(const config::Config& config, const cost::Machine& machine,
                                      const DeclaredCosts& costs = {}) {
  cost::Profile profile(machine);
  const auto programs = planning::step_programs(config, machine.cluster.ranks);
  for (const ir::Program& program : programs.value())
    for (const ir::Instruction& instruction : program.instructions) {
      if (!cost::is_local(program, instruction)) continue;
      const std::string key = cost::op_key(program, instruction);
      profile.ops[key] = {costs.compute_ms(key).value(), 1, 0};
    }
  if (machine.cluster.ranks == 1) return profile;
  for (const double bytes : {1e3, 1e6}) {
    profile.network.all_to_all.push_back({bytes, costs.all_to_all_ms(bytes)});
    profile.network.all_reduce.push_back({bytes, costs.all_reduce_ms(bytes)});
  }
  profile.network.all_to_all_core = costs.all_to_all_core();
  profile.network.all_reduce_core = costs.all_reduce_core();
  profile.network.launch_ms = costs.launch_ms();
  profile.network.interference = costs.interference();
  return profile;
}

// Writes it to a file.
inline std::string write_declared_profile(const std::string& path, const config::Config& config, int ranks, int hosts) {
  const Status written = cost::write_profile(path, declared_profile(config, declared_machine(ranks, hosts)));
  LANCET_CHECK(written.ok(), "{}", written.error().message);
  return path;
}

}  // namespace lancet::test
