// An experiment file: grids of points (model, gate, ranks, policy), each a training step to measure or to simulate.
//
//   {"title": "...", "settings": "settings.json", "warmup": 2, "steps": 5, "time_planning": false, "rate": "200mbit",
//    "grids": [{"on": "p3dn-v100", "label": "", "models": ["GPT2-S-MoE"], "gates": ["switch"], "ranks": [8, 16],
//               "policies": ["Lancet"], "set": ["train.micro_batch_size=16"]}]}
//
// The settings file, beside it, says what the names of models and policies mean:
//   {"models": {"GPT2-S-MoE": {"config": "configs/gpt2-s-moe.json", "set": ["model.n_head=16"]}},
//    "policies": {"Lancet": {"set": ["overlap.policy=lancet"]}}}
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/config/config.h"

namespace lancet::experiment {

// Where a point's times come from.
enum class Source { simulated, measured, emulated };
std::string_view name(Source source);

struct Point {
  std::string id;     // 16 digits: a hash of everything that its result depends on
  std::string label;  // of its grid
  std::string model, gate, policy;
  int ranks = 1, hosts = 1;
  std::string on;  // a hardware file, "this" or "emulated"
  Source source = Source::simulated;
  config::Config config;
  std::string config_file;
  std::vector<std::string> overrides;  // of the config file, in order
  std::string describe() const;        // "p3dn-v100, GPT2-S-MoE, switch, 16 ranks, Lancet"
};

struct Experiment {
  std::string name;  // of the file, without its ending
  std::string title;
  bool time_planning = false;  // records say how long planning took here, and so differ from run to run
  int warmup = 2, steps = 5;   // of a measured run; warm-up is not among the steps
  std::string rate;            // of the links of an emulated cluster
  std::vector<Point> points;   // in the file's order
};

// on: in place of each grid's; empty: the file's. program: what identifies the code, for the points' ids. Config errors
// name the file and the grid: an unknown key, model, policy or hardware, a config that does not fit the ranks.
Result<Experiment> read_experiment(const std::filesystem::path& path, const std::string& on,
                                   const std::string& program);

}  // namespace lancet::experiment
