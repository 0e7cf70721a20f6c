// Steps on ranks that are threads, with what can be read after each: the gates' decisions, and the gradients before
// clipping. Decisions and gradients of a mesh's ranks are put together to those of the whole batch.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "doubles/inproc.h"
#include "train/meshes.h"
#include "train/rank_state.h"

namespace lancet::test {

// What the gate of a layer decides about T tokens and E experts.
struct LayerRoute {
  std::vector<std::int32_t> expert, slot;  // [T]; slot -1: dropped
  std::vector<std::int32_t> filled;        // [E,2]
  std::vector<float> score, probability;   // [T,E], the router's; [T], of the chosen expert
  friend bool operator==(const LayerRoute&, const LayerRoute&) = default;
  std::size_t tokens() const { return expert.size(); }
  std::size_t experts() const { return filled.size() / 2; }
  bool is_dropped(std::size_t token) const { return slot[token] < 0; }
};

// The elements of a whole tensor that a rank has.
struct HeldValues {
  std::vector<ir::HeldRun> runs;
  std::vector<float> values;
};

// One rank's, after a step.
struct Observed {
  std::map<std::string, LayerRoute> routes;     // by layer
  std::map<std::string, HeldValues> gradients;  // by parameter
};

using Weights = std::map<std::string, std::vector<float>>;  // whole parameters, by name
using ObservedStep = std::vector<Observed>;                 // by rank

template <class T>
std::vector<T> copy_of(const ops::TensorView& view) {
  return {view.as<T>(), view.as<T>() + view.elements()};
}

inline Observed observe(train::Trainer& trainer) {
  Observed seen;
  const auto output = [&](const std::string& name) { return trainer.executor().output(name); };
  const ir::Program& program = trainer.executor().plan().program;
  for (const ir::Output& at : program.outputs) {
    if (at.kind == ir::OutputKind::gradient) {
      // A gradient has the elements of its moments, with ZeRO-1 the flat shard that the rank updates.
      const std::string& name = program[at.parameter].name;
      seen.gradients[name] = {trainer.store().held(ir::state_name(name, ir::StateKind::first_moment)),
                              copy_of<float>(output(at.name))};
    } else if (at.name.starts_with("expert.")) {
      const std::string layer = at.name.substr(7);
      seen.routes[layer] = {.expert = copy_of<std::int32_t>(output("expert." + layer)),
                            .slot = copy_of<std::int32_t>(output("slot." + layer)),
                            .filled = copy_of<std::int32_t>(output("filled." + layer)),
                            .score = copy_of<float>(output("score." + layer)),
                            .probability = copy_of<float>(output("probability." + layer))};
    }
  }
  return seen;
}

// Runs steps 0 to steps - 1 and looks at each; `before` is called on every rank before every step.
inline std::vector<ObservedStep> observe_steps(const config::Config& config, int ranks, int steps,
                                               const std::function<Status(train::Trainer&, int step)>& before) {
  const ObservedStep nothing(static_cast<std::size_t>(ranks));
  std::vector<ObservedStep> seen(static_cast<std::size_t>(steps), nothing);
  const Status status = comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, {.local_ranks = ranks, .inspect = true}));
    for (int step = 0; step < steps; ++step) {
      LANCET_TRY(before(*trainer, step));
      LANCET_TRY(trainer->step(step));
      seen[std::size_t(step)][std::size_t(world.rank())] = observe(*trainer);
    }
    return {};
  });
  if (!status.ok()) throw InternalError(status.error().message);
  return seen;
}

// The parameters of a trainer on one rank, in f32.
inline Weights weights_of(const runtime::TensorStore& store) {
  Weights weights;
  for (const auto& [name, tensor] : store.all()) {
    if (tensor.kind != ir::TensorKind::parameter) continue;
    const auto values = tensor.memory.span<const float>();
    weights[name] = {values.begin(), values.end()};
  }
  return weights;
}

// Gives a rank its share of these parameters. Rows of the vocabulary that only its mesh has are zero.
inline Status set_weights(runtime::TensorStore& store, const Weights& weights) {
  for (const auto& [name, whole] : weights) {
    std::vector<float> held(std::size_t(store[name].type.shape.elements()));
    for (const ir::HeldRun& run : store.held(name))
      for (std::int64_t i = 0; i < run.count && run.whole + i < std::ssize(whole); ++i)
        held[std::size_t(run.held + i)] = whole[std::size_t(run.whole + i)];
    LANCET_TRY(train::set_parameter(store, name, held));
  }
  return {};
}

// The config of one rank, with the same batch on a mesh.
inline config::Config moved_to(const ir::Mesh& mesh, config::Config config) {
  config.mesh = config_on(mesh).mesh;
  config.train.micro_batch_size = config_on(mesh).train.micro_batch_size;
  return config;
}

// One rank of each group that has the same tokens, in the order of the tokens.
inline std::vector<int> ranks_of_tokens(const ir::Mesh& mesh) { return mesh.group(0, ir::batch_axes); }

// The route of the whole batch. A rank's slots begin after those that the ranks before it fill.
inline LayerRoute whole_route(const ObservedStep& step, const ir::Mesh& mesh, const std::string& layer) {
  LayerRoute whole;
  const auto append = [](auto& all, const auto& part) { all.insert(all.end(), part.begin(), part.end()); };
  for (const int rank : ranks_of_tokens(mesh)) {
    const LayerRoute& mine = step[std::size_t(rank)].routes.at(layer);
    whole.filled.resize(mine.filled.size());
    for (std::size_t t = 0; t < mine.tokens(); ++t)
      whole.slot.push_back(mine.is_dropped(t) ? -1 : mine.slot[t] + whole.filled[2 * std::size_t(mine.expert[t]) + 1]);
    for (std::size_t e = 0; e < mine.experts(); ++e)
      whole.filled[2 * e + 1] += mine.filled[2 * e + 1] - mine.filled[2 * e];
    append(whole.expert, mine.expert);
    append(whole.score, mine.score);
    append(whole.probability, mine.probability);
  }
  return whole;
}

// The largest difference of a rank's elements of a gradient from those of one rank, over the largest element of the
// latter. Rows that pad the vocabulary of the mesh alone have no gradient. Infinity: an element that is on no rank, or
// a number that is not finite.
inline double relative_error(const ObservedStep& step, const std::string& name, std::span<const float> expected) {
  double largest = 0, error = 0;
  for (const float value : expected) largest = std::max(largest, std::abs(double(value)));
  std::vector<bool> is_held(expected.size());
  for (const Observed& rank : step) {
    const HeldValues& mine = rank.gradients.at(name);
    for (const ir::HeldRun& run : mine.runs)
      for (std::int64_t i = 0; i < run.count; ++i) {
        const auto at = std::size_t(run.whole + i);
        const double found = mine.values.at(std::size_t(run.held + i));
        const double difference = std::abs(found - (at < expected.size() ? double(expected[at]) : 0));
        error = std::max(error, std::isfinite(found) ? difference : std::numeric_limits<double>::infinity());
        if (at < expected.size()) is_held[at] = true;
      }
  }
  if (std::ranges::find(is_held, false) != is_held.end()) return std::numeric_limits<double>::infinity();
  return largest > 0 ? error / largest : error;
}

}  // namespace lancet::test
