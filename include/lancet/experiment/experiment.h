// An experiment file: grids of points (model, gate, ranks, policy), each a training step to measure or to simulate.
//
//   {"title": "...", "settings": "settings.json", "warmup": 2, "steps": 5, "time_planning": false, "rate": "200mbit",
//    "grids": [{"on": "p3dn-v100", "label": "", "models": ["GPT2-S-MoE"], "gates": ["switch"], "ranks": [8, 16],
//               "policies": ["Lancet"], "set": ["train.micro_batch_size=16"], "routing": "even",
//               "hardware": ["", "network.latency_us=50", "fast,device=slow"]}]}
//
// routing applies to simulated points: "even", or {"imbalance": 2}, where the fullest expert is chosen by twice as many
// tokens as the mean expert (cost::Routing).
// hardware applies to simulated points, too: each of these changes to the numbers of the hardware file
// (cost::read_hardware) is a set of points; "" leaves the nominal numbers. The default is [""].
//
// settings defines the names of models and policies. It is an object as below or the name of a file, which is searched
// beside the experiment, in the current folder and among those that come with the program. The default is the file
// settings.json beside the experiment.
//   {"models": {"GPT2-S-MoE": {"config": "configs/gpt2-s-moe.json", "set": ["model.n_head=16"]}},
//    "policies": {"Lancet": {"set": ["overlap.policy=lancet"]}, "whole": {"set": [...], "padded": true},
//                 "mine": {"plan": "plan.ir"}}}
// config names a file in the current folder, beside the settings, or one that comes with the program.
// padded applies to simulated points: whole buffers are sent and multiplied, filled or not.
// plan applies to simulated points: the plan file of that path is simulated as it is, in place of one that is made.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/config/config.h"
#include "lancet/cost/hardware.h"

namespace lancet::experiment {

// The way in which a point gets its times.
enum class Source { simulated, measured, emulated };
std::string_view name(Source source);

struct Point {
  std::string id;     // 16 hexadecimal digits, equal for equal points (see read_experiment)
  std::string label;  // of its grid
  std::string model, gate, policy;
  int ranks = 1, hosts = 1;
  std::string on;         // a hardware file, "this" or "emulated"
  std::string variation;  // changes to the hardware file's numbers; empty: none
  std::string plan;       // the path of a plan file; empty: the policy makes one
  Source source = Source::simulated;
  cost::Routing spread;                           // of a simulated point's tokens
  std::shared_ptr<const cost::Profile> measured;  // overrides the hardware file of a simulated point; may be null
  config::Config config;
  std::string config_file;
  std::vector<std::string> overrides;  // of the config file, in order
  std::string describe() const;        // "p3dn-v100, GPT2-S-MoE, switch, 16 ranks, Lancet"
  std::string routing() const;         // how tokens spread over the experts, in words
  std::string hardware() const { return on + (variation.empty() ? "" : ":" + variation); }
};

struct Experiment {
  std::string name;  // of the file, without its ending
  std::string title;
  bool time_planning = false;  // records hold the planning time on this machine, which differs from run to run
  int warmup = 2, steps = 5;   // of a measured run; warm-up is not among the steps
  std::string rate;            // of the links of an emulated cluster
  std::vector<Point> points;   // in the file's order
};

// Identifies the code and the machine that produce a result; both are part of a point's id.
struct Identity {
  std::string simulator;  // simulated points: a hash of the simulator's sources
  std::string machine;    // measured and emulated points: the processor
  static Identity here();
};

// Reads an experiment file and expands its grids into points.
//
// path: a file in the current folder or among those that come with the program, or the name of an experiment that comes
// with it. on: replaces the field of each grid; empty: the file's. profile: a file of measured costs that override the
// hardware's; empty: none.
//
// Two points have one id if their names, ranks and the config fields that differ from the defaults are equal, and
// - simulated: the numbers of the hardware file, the routing, the profile, the plan file's text and the simulator's
//   sources;
// - measured: the machine, the numbers of steps and, on an emulated cluster, its rate. The program's version is
//   not part of a measured point's id; the record names the commit.
//
// Config errors name the file and the grid: an unknown key, model, policy or hardware; a config that does not fit the
// ranks; a profile that holds no fitting costs, or one that is given with measured, uneven or padded points.
Result<Experiment> read_experiment(const std::filesystem::path& path, const std::string& on, const Identity& identity,
                                   const std::filesystem::path& profile = {});

// Returns a hash (16 hexadecimal digits) of the sources that decide a simulated point's numbers: programs, ops'
// descriptions, costs, model, planner, and the config's defaults, which ids leave out.
std::string_view simulator_build();

}  // namespace lancet::experiment
