// Slots are global: on every mesh each token gets the expert, and the slot or drop, that it gets on one rank. Where no
// sum of the forward pass is split, the scores are equal to the bit, and so are the routes. The axis `tensor` splits
// sums, so scores differ by rounding there; a token whose two best scores differ by less than that may choose the other
// expert. Such tokens are counted, and each is checked to be that close. That slots follow from the choices of the
// whole batch is checked on every mesh for itself, so that no exception can hide a rank that counts alone.
#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <set>

#include "lancet/model/transformer.h"
#include "ops/moe/slots/assign.h"
#include "routers.h"
#include "train/observed_steps.h"

namespace lancet {
namespace {

using ir::Axis;
using ir::Mesh;
using test::LayerRoute;
using test::ObservedStep;
using test::Weights;

const Mesh route_meshes[] = {test::mesh_of(4, 1, 1), test::mesh_of(2, 1, 2), test::mesh_of(2, 2, 1),
                             test::mesh_of(1, 1, 4), test::mesh_of(1, 2, 2)};

// How far two scores may be apart, as a multiple of the layer's largest score, and still change places where sums are
// split: each of the two may move by half of it. An f32 sum of n terms is off by at most n 2^-24 of the sum of the
// absolute terms (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2), and a score is a sum over
// n_embd features. Taking the largest score for the absolute terms, and allowing nothing for the layers before, is
// stricter. Errors of both signs cancel: the scores of these tests moved by at most an eighth of what this allows.
double rounding_of(const config::Model& model) { return double(model.n_embd) * 0x1p-23; }

// The same after steps of the mesh's own: the updates have been rounded differently, too, and Adam divides them by
// their size, so that weights differ by more than by rounding. Scores moved by 1.2e-5.
constexpr double trained_rounding = 1e-4;

double largest_score(const LayerRoute& route) {
  double largest = 0;
  for (const float score : route.score) largest = std::max(largest, std::abs(double(score)));
  return largest;
}

// By how much the best score of a token is above the second.
double score_gap(const LayerRoute& route, std::size_t token) {
  const auto first = route.score.begin() + std::ptrdiff_t(token * route.experts());
  std::vector<double> scores(first, first + std::ptrdiff_t(route.experts()));
  std::ranges::sort(scores, std::greater());
  return scores[0] - scores[1];
}

// The largest difference; infinity: a number that is not finite.
double farthest(const std::vector<float>& found, const std::vector<float>& expected) {
  double distance = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double apart = std::abs(double(found.at(i)) - double(expected[i]));
    distance = std::max(distance, std::isfinite(apart) ? apart : std::numeric_limits<double>::infinity());
  }
  return distance;
}

std::size_t tokens_of_group(const config::Config& config) {
  return std::size_t(config.model.router_group_size.value() * config.train.seq_len);
}

// The experts that the scores choose, and the slots that the whole batch's gate gives such tokens.
LayerRoute rule_of(const LayerRoute& route, const config::Config& config) {
  LayerRoute rule = route;
  const std::size_t experts = route.experts();
  for (std::size_t t = 0; t < route.tokens(); ++t) {
    const auto first = route.score.begin() + std::ptrdiff_t(t * experts);
    rule.expert[t] = std::int32_t(std::max_element(first, first + std::ptrdiff_t(experts)) - first);
  }
  ops::routing::Decision d;
  d.entries = std::int64_t(route.tokens()), d.experts = std::int64_t(experts);
  d.group_entries = std::int64_t(tokens_of_group(config)), d.groups = d.entries / d.group_entries;
  d.capacity = model::capacity(*config.model.capacity_factor, d.group_entries, d.experts);
  std::vector<std::int32_t> counts(std::size_t(d.groups) * experts);
  std::vector<float> load(2 * experts);
  d.expert = rule.expert.data(), d.slot = rule.slot.data(), d.filled = rule.filled.data();
  d.counts = counts.data(), d.load = load.data();
  std::vector<std::uint64_t> order;
  const bool prioritized = config.model.router == config::Router::batch_prioritized;
  if (prioritized) {
    order.resize(route.tokens());
    ops::routing::prioritize(route.probability.data(), d.choices, order);
  }
  ops::routing::assign_slots(d, prioritized ? ops::routing::Service::by_choice : ops::routing::Service::by_token,
                             order);
  return rule;
}

// How the decisions of a mesh differ from those of one rank.
struct Exceptions {
  int tokens = 0, different = 0, not_close = 0;
  double share() const { return double(different) / tokens; }
};

class Comparison {
 public:
  Comparison(const LayerRoute& found, const LayerRoute& expected, std::size_t group_tokens, double close)
      : found_(found), expected_(expected), group_tokens_(group_tokens), close_(close) {}

  // Of all groups of tokens but those in which an earlier layer has exceptions; adds those in which this one has.
  Exceptions of_groups(std::set<std::size_t>& diverged) const {
    Exceptions all;
    for (std::size_t group = 0; group < expected_.tokens() / group_tokens_; ++group) {
      if (diverged.contains(group)) continue;
      const int before = all.different;
      for (std::size_t t = group * group_tokens_; t < (group + 1) * group_tokens_; ++t) {
        ++all.tokens;
        all.different += differs(t);
        all.not_close += differs(t) && !is_close(t);
      }
      if (all.different > before) diverged.insert(group);
    }
    return all;
  }

 private:
  bool has_another_expert(std::size_t t) const { return found_.expert[t] != expected_.expert[t]; }
  bool differs(std::size_t t) const { return has_another_expert(t) || found_.is_dropped(t) != expected_.is_dropped(t); }
  // A token with the same expert is kept or dropped otherwise only if a token of its group has another expert, or if
  // two that compete by probability have changed places.
  bool is_close(std::size_t t) const {
    if (has_another_expert(t)) return score_gap(expected_, t) < close_;
    const std::size_t first = t / group_tokens_ * group_tokens_;
    for (std::size_t u = first; u < first + group_tokens_; ++u) {
      const double apart = std::abs(double(expected_.probability[u]) - double(expected_.probability[t]));
      if (u != t && differs(u) && (has_another_expert(u) || apart < close_)) return true;
    }
    return false;
  }

  const LayerRoute &found_, &expected_;
  std::size_t group_tokens_;
  double close_;
};

// Ranks along tensor have the same tokens, and must decide the same.
void check_copies(const ObservedStep& step, const Mesh& mesh) {
  for (int rank = 0; rank < mesh.ranks(); ++rank)
    CHECK(step[std::size_t(rank)].routes == step[std::size_t(mesh.group(rank, {Axis::tensor})[0])].routes);
}

// The step of a mesh against that of one rank. rounding: of the layer's largest score; 0: none.
Exceptions check_routes(const ObservedStep& step, const ObservedStep& alone, const Mesh& mesh,
                        const config::Config& config, double rounding) {
  check_copies(step, mesh);
  Exceptions all;
  std::set<std::size_t> diverged;
  for (const auto& [layer, expected] : alone[0].routes) {
    INFO(layer);
    const LayerRoute found = test::whole_route(step, mesh, layer);
    CHECK(rule_of(found, config) == found);
    CHECK(rule_of(expected, config) == expected);
    CHECK(std::ranges::count(expected.slot, -1) > 0);
    if (rounding == 0) CHECK(found == expected);
    const double close = rounding * largest_score(expected);
    if (diverged.empty()) {
      CHECK(farthest(found.score, expected.score) <= close / 2);
      CHECK(farthest(found.probability, expected.probability) <= close / 2);
    }
    const Exceptions some = Comparison(found, expected, tokens_of_group(config), close).of_groups(diverged);
    if (diverged.empty()) CHECK((found.expert == expected.expert && found.slot == expected.slot));
    CHECK(some.not_close == 0);
    all.tokens += some.tokens;
    all.different += some.different;
  }
  return all;
}

// Gives experts 0 and 1 of a gate weights that differ by up to `noise_size` alone, and experts 2 and 3.
void bring_scores_together(std::vector<float>& gate, std::size_t experts, float noise_size) {
  const std::size_t features = gate.size() / experts;
  std::minstd_rand random(1);
  std::uniform_real_distribution<float> noise(-noise_size, noise_size);
  for (std::size_t e = 0; e + 1 < experts; e += 2)
    for (std::size_t d = 0; d < features; ++d) gate[(e + 1) * features + d] = gate[e * features + d] + noise(random);
}

}  // namespace

TEST_CASE("meshes: every token has the expert and the slot that it has on one rank, before and after updates") {
  constexpr int last = 5;  // the step that all begin with one rank's weights; those before it have their own
  config::Config alone = test::mesh_config(1);
  alone.model.router = GENERATE(from_range(test::top_1_routers));
  Weights trained;
  const auto expected = test::observe_steps(alone, 1, last + 1, [&](train::Trainer& trainer, int step) -> Status {
    if (step == last) trained = test::weights_of(trainer.store());
    return {};
  });
  for (const Mesh& mesh : route_meshes)
    for (const int zero : {0, 1}) {
      if (zero && mesh.size(ir::batch_axes) == 1) continue;  // nothing to divide
      config::Config config = test::moved_to(mesh, alone);
      config.train.zero = zero;
      const auto found = test::observe_steps(config, mesh.ranks(), last + 1, [&](train::Trainer& trainer, int step) {
        return step == last ? test::set_weights(trainer.store(), trained) : Status();
      });
      for (std::size_t step = 0; step <= last; ++step) {
        INFO(to_string(mesh) << ", train.zero " << zero << ", step " << step);
        const bool has_same_weights = step == 0 || step == last;
        double rounding = has_same_weights ? rounding_of(alone.model) : trained_rounding;
        if (has_same_weights && mesh[Axis::tensor] == 1) rounding = 0;
        CHECK(check_routes(found[step], expected[step], mesh, alone, rounding).share() <= 0.01);
      }
    }
}

TEST_CASE("meshes: tokens whose scores are close choose otherwise only if they are within rounding") {
  // Weights are about 2^-6. The smaller noise lets rounding choose for all tokens, the larger one for a few at most.
  const bool all_close = GENERATE(true, false);
  const float noise = all_close ? 0x1p-27f : 0x1p-20f;
  config::Config alone = test::mesh_config(1);
  alone.model.router = GENERATE(from_range(test::top_1_routers));
  Weights close;
  const auto expected = test::observe_steps(alone, 1, 1, [&](train::Trainer& trainer, int) -> Status {
    close = test::weights_of(trainer.store());
    bring_scores_together(close.at("h.2.moe.gate.weight"), 4, noise);  // the last gate: no later one has other inputs
    return test::set_weights(trainer.store(), close);
  });
  for (const Mesh& mesh : route_meshes) {
    INFO(to_string(mesh) << ", noise " << noise);
    const auto found =
        test::observe_steps(test::moved_to(mesh, alone), mesh.ranks(), 1,
                            [&](train::Trainer& trainer, int) { return test::set_weights(trainer.store(), close); });
    const bool splits_sums = mesh[Axis::tensor] > 1;
    const Exceptions exceptions =
        check_routes(found[0], expected[0], mesh, alone, splits_sums ? rounding_of(alone.model) : 0);
    if (all_close) CHECK((exceptions.different > 0) == splits_sums);
    if (!all_close) CHECK(exceptions.share() <= 0.05);  // with the tokens of a group that another one moves
  }
}

}  // namespace lancet
