// DrawnRouting: which experts the tokens of an emulated device choose, drawn from the seed.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"

namespace lancet::runtime {

// The MoE layers for which tokens are drawn.
struct RoutedModel {
  int layers = 0;
  std::int64_t experts = 0;  // of a layer, over all ranks
  int ranks = 1;             // along `expert`, each of which has as many
  int micro_batches = 1;     // of a step
  std::uint64_t seed = 0;
  std::int64_t choices = 1;  // experts of a token
};

class DrawnRouting {
 public:
  // text: "even": token i of a rank chooses expert i modulo the experts, and those after it; "zipf:S": the i-th most
  // popular expert of a layer is chosen in proportion to 1 / i^S; "trace:FILE": as often as in the records of a run
  // (metrics.jsonl), whose steps follow one another and then begin again. Config errors name emulated.routing: another
  // text, a file that cannot be read or holds no counts, or counts of other layers or experts.
  static Result<DrawnRouting> read(const std::string& text, const RoutedModel& model);

  // Makes the scores [tokens, experts] of tokens first, first + 1, ... of a rank's micro batch. The highest scores of
  // a token are those of the experts which it chooses, the first choice first; all are from 0 to below 10. pass: the
  // micro batches before this one. place: of the rank among those that have other tokens; ranks with the same tokens
  // have the same.
  void draw(int layer, std::int64_t pass, int place, std::int64_t first, std::span<float> scores) const;

  // The expected load of the rank with the fullest experts after drops, and the expected tokens that are kept, on
  // average over layers and steps, relative to even routing (cost::RankLoad). capacity: slots of an expert relative to
  // its mean load. of: the ranks along `expert` of which the fullest is asked for; none: all of them.
  struct Expected {
    double fullest = 1, kept = 1;
  };
  Expected expected(double capacity, std::span<const int> of = {}) const;

 private:
  // The probabilities with which the experts of one layer are among a token's choices in one step, added up: the last
  // is the number of choices.
  using Sums = std::vector<double>;
  explicit DrawnRouting(const RoutedModel& model) : model_(model) {}
  Status read_trace(const std::string& file);
  void follow_zipf(double exponent);
  const Sums& sums(int layer, std::int64_t pass) const;

  RoutedModel model_;
  std::vector<Sums> sums_;  // by step of the trace, then by layer; empty: even
};

}  // namespace lancet::runtime
