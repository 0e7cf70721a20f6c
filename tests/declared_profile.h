// A file of costs for a config without measuring: DeclaredCosts supply every op that its planning asks about.
#pragma once
#include "declared_costs.h"
#include "lancet/base/check.h"
#include "lancet/cost/profile.h"
#include "lancet/ir/groups.h"
#include "lancet/planner/from_config.h"
#include "lancet/run/step_costs.h"

namespace lancet::test {

// A CPU that no machine has.
inline cost::Machine declared_machine(int ranks, int hosts) {
  return {{"Declared CPU", "none", 1, (ranks + hosts - 1) / hosts, "0123456789abcdef"},
          {ranks > 1 ? "mpi" : "self", ranks, hosts}};
}

// The times of messages of this reach in a group of ranks; those to some of its ranks take `share` of the time of an
// all-to-all of as many bytes.
inline void add_messages(cost::Profile& profile, ir::Axes axes, const cost::Reach& reach, const DeclaredCosts& costs,
                         double share) {
  const ir::Axes group = cost::measured_group(profile.mesh, axes);
  cost::CollectiveTimes& times =
      group.empty() ? profile.network : profile.network.groups[cost::group_key(profile.mesh, group)];
  const auto points = [&](double factor) {
    return std::vector<cost::Point>{{1e3, factor * costs.all_to_all_ms(1e3)}, {1e6, factor * costs.all_to_all_ms(1e6)}};
  };
  times.all_to_all = points(1);
  times.all_reduce = {{1e3, costs.all_reduce_ms(1e3)}, {1e6, costs.all_reduce_ms(1e6)}};
  if (!reach.all()) times.messages[cost::to_string(reach)] = points(share);
}

inline cost::Profile declared_profile(const config::Config& config, const cost::Machine& machine,
                                      const DeclaredCosts& costs = {}, double share = 1) {
  cost::Profile profile(machine);
  profile.mesh = config::mesh_of(config, machine.cluster.ranks);
  const auto programs = planner::programs_to_profile({config, machine.cluster.ranks}, machine.cluster.hosts);
  for (const ir::Program& program : programs.value())
    for (const ir::Instruction& instruction : program.instructions) {
      if (machine.cluster.ranks > 1 && instruction.stream != ir::Stream::compute)
        add_messages(profile, ir::group_of(instruction), cost::reach_of(instruction), costs, share);
      if (!cost::is_local(program, instruction)) continue;
      const std::string key = cost::op_key(program, instruction);
      profile.ops[key] = {costs.compute_ms(key).value(), 1, 0};
    }
  if (machine.cluster.ranks == 1) return profile;
  add_messages(profile, {}, {}, costs, share);
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
