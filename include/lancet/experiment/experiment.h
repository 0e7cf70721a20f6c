// An experiment file: grids of points (model, gate, ranks, policy), each a training step to measure or to simulate.
//
//   {"title": "...", "settings": "settings.json", "warmup": 2, "steps": 5, "time_planning": false, "rate": "200mbit",
//    "grids": [{"on": "p3dn-v100", "label": "", "models": ["GPT2-S-MoE"], "gates": ["switch"], "ranks": [8, 16],
//               "policies": ["Lancet"], "set": ["train.micro_batch_size=16"], "routing": "even"}]}
//
// routing, of simulated points: "even", or {"imbalance": 2}: the fullest expert is chosen by so many times the mean
// (cost::Routing).
//
// settings, which says what the names of models and policies mean, is a file (beside the experiment, in the current
// folder or among those that come with the program; without the field settings.json beside it) or stands here as an
// object:
//   {"models": {"GPT2-S-MoE": {"config": "configs/gpt2-s-moe.json", "set": ["model.n_head=16"]}},
//    "policies": {"Lancet": {"set": ["overlap.policy=lancet"]}, "RAF": {"set": [...], "padded": true}}}
// config: in the current folder, beside the settings, or one that comes with the program.
// padded, of simulated points: whole buffers are sent and multiplied, filled or not.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/config/config.h"
#include "lancet/cost/hardware.h"

namespace lancet::experiment {

// Where a point's times come from.
enum class Source { simulated, measured, emulated };
std::string_view name(Source source);

struct Point {
  std::string id;     // 16 digits: what the point asks for (read_experiment)
  std::string label;  // of its grid
  std::string model, gate, policy;
  int ranks = 1, hosts = 1;
  std::string on;  // a hardware file, "this" or "emulated"
  Source source = Source::simulated;
  cost::Routing spread;                           // of a simulated point's tokens
  std::shared_ptr<const cost::Profile> measured;  // goes before the hardware file of a simulated point; null: none
  config::Config config;
  std::string config_file;
  std::vector<std::string> overrides;  // of the config file, in order
  std::string describe() const;        // "p3dn-v100, GPT2-S-MoE, switch, 16 ranks, Lancet"
  std::string routing() const;         // how tokens spread over the experts, in words
};

struct Experiment {
  std::string name;  // of the file, without its ending
  std::string title;
  bool time_planning = false;  // records say how long planning took here, and so differ from run to run
  int warmup = 2, steps = 5;   // of a measured run; warm-up is not among the steps
  std::string rate;            // of the links of an emulated cluster
  std::vector<Point> points;   // in the file's order
};

// What results depend on besides what an experiment says.
struct Identity {
  std::string simulator;  // of simulated points: the code that makes them
  std::string machine;    // of measured and emulated ones: where they run
  static Identity here();
};

// path: a file, in the current folder or among those that come with the program, or the name of one of their
// experiments. on: in place of each grid's; empty: the file's. Points are the same, and have one id, if the experiment
// says the same of them (the fields of their config that differ from the defaults; measured ones: steps, and the rate
// of an emulated cluster) and, simulated, the hardware file's numbers and the simulator are the same, or else the
// machine. A measured point is not another one because the program is: its record names the commit. profile: a file of
// measured costs that go before the hardware's; empty: none. Config errors name the file and the grid: an unknown key,
// model, policy or hardware, a config that does not fit the ranks, a profile of which nothing fits, or with points that
// are run, uneven or padded, which it does not know.
Result<Experiment> read_experiment(const std::filesystem::path& path, const std::string& on, const Identity& identity,
                                   const std::filesystem::path& profile = {});

// A hash of the sources that decide a simulated point's numbers: programs, ops' descriptions, costs, model, planner,
// and the config's defaults, which ids leave out; 16 digits.
std::string_view simulator_build();

}  // namespace lancet::experiment
