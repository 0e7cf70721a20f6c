// The simulator that predicts when the instructions of a step run; the passes minimise its makespan. Each stream runs
// in program order, each instruction after its dependencies; streams that are busy at once slow down as the costs say.
// Pipeline stages are rank classes that are simulated together; a step without stages is one class.
#pragma once

#include <span>
#include <vector>

#include "lancet/cost/costs.h"
#include "lancet/ir/mesh.h"
#include "lancet/ir/plan.h"

namespace lancet::schedule {

// The share of the cores that messages take at most, however many bytes move beside computation.
inline constexpr double most_of_cores = 0.9;

// Per instruction, ascending, the earlier instructions that must end before it starts: ir::dependencies, and those that
// a policy adds.
using Dependencies = std::vector<std::vector<ir::InstructionId>>;
// Adds the extra dependencies of each instruction; `extra` may be empty.
void join(Dependencies& dependencies, const Dependencies& extra);

struct Timeline {
  std::vector<ir::Interval> when;  // per instruction, milliseconds
  double makespan = 0;
  double compute = 0, all_to_all = 0, all_reduce = 0;  // busy time of the streams compute, expert and reduce
  double communication = 0;                            // time in which a communication stream is busy
  double exposed = 0;                                  // part of it in which the compute stream is idle
};

// Of instructions that run at these times.
Timeline timeline_of(const ir::Program& program, std::vector<ir::Interval> when);

// shared: an all-reduce that is ready starts beside an all-to-all. all_to_all_first: it waits until the all-to-all that
// is under way has ended.
enum class Network { shared, all_to_all_first };

// op_costs: per instruction. An instruction starts when its stream is free and its dependencies have ended; launch_ms
// is added after a dependency on another stream. Communication runs at speed network_beside_compute while the compute
// stream is busy, times network_beside_network while both communication streams are; if the costs have a queue_ms,
// messages take turns instead. Computation runs at the speed that the cores which move bytes leave it: a communication
// takes core_ms from it in total, spread over its actual duration. Time linear in instructions and
// dependencies.
Timeline simulate(const ir::Program& program, const Dependencies& dependencies, std::span<const cost::OpCost> op_costs,
                  const cost::Interference& interference, double launch_ms, Network network = Network::shared);

// The makespan of the program in another order, which keeps the dependencies: that of simulate() with everything in
// that order, but nothing is copied. dependencies and op_costs are those of the program.
double makespan_in_order(const ir::Program& program, std::span<const ir::InstructionId> order,
                         const Dependencies& dependencies, std::span<const cost::OpCost> op_costs,
                         const cost::Interference& interference, double launch_ms);

// The ranks that run one program, such as those of a pipeline stage. One of them stands for all.
struct RankClass {
  const ir::Program& program;  // in the order of its streams
  const Dependencies& needed;
  std::span<const cost::OpCost> op_costs;
  cost::Interference interference = {};
  double launch_ms = 0;
  std::span<const ir::InstructionId> order = {};  // another one that keeps what is needed; empty: the program's
};

// What ranks of several classes do together: the two ends of a message, or a collective along the axis `stage`. The
// k-th of one key in the program of a class meets the k-th of that key in the others. InternalError: the programs have
// different numbers of a key.
struct Meetings {
  struct Member {
    int stage;
    std::size_t instruction;
  };
  std::vector<std::vector<Member>> members;   // of each meeting
  std::vector<std::vector<std::int32_t>> of;  // by stage and instruction: its meeting; -1: none
};
Meetings meetings_of(std::span<const RankClass> stages, const ir::Mesh& mesh);

// The times of all pipeline stages.
struct StagesTimeline {
  std::vector<Timeline> stages;  // each with the makespan of its own stage
  double makespan = 0;
  // Of a stage: the time in which it computes nothing before the last stage has ended.
  double bubble_ms(std::size_t stage) const { return makespan - stages[stage].compute; }
};

// The stages of a mesh, by their numbers. What several do together starts when all have reached it, and takes the
// longest of their times, at the speed of the slowest. Messages between stages share the network with others that the
// same class sends or receives, unless messages take turns. InternalError: stages wait for one another (ir/plan.h).
StagesTimeline simulate(std::span<const RankClass> stages, const ir::Mesh& mesh);

// simulate() for the plans of all stages, or for a plan of one, whatever costs they were made with: their order and
// their waits, with these costs. Error (ExitCode::config): the costs lack an op.
Result<StagesTimeline> simulate(std::span<const ir::Plan> stages, const ir::Mesh& mesh, const cost::Costs& costs);
Result<Timeline> simulate(const ir::Plan& plan, const cost::Costs& costs);

// Dependencies that keep streams from overlapping.

// Adds dependencies such that compute and all-to-all do not overlap: each instruction waits for the last one of the
// other stream before it. A part (`parts` attribute) waits for the last whole one only, so parts still overlap each
// other.
Dependencies turns(const ir::Program& program, Dependencies dependencies);
// The same where `overlaps`, per instruction, says in place of the attribute which of them overlap each other.
Dependencies turns(const ir::Program& program, Dependencies dependencies, const std::vector<bool>& overlaps);

// Adds dependencies such that the communication streams never share the network: each message waits for the last one of
// the other stream before it in program order.
Dependencies one_message_at_a_time(const ir::Program& program, Dependencies dependencies);

}  // namespace lancet::schedule
