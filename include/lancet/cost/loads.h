// Loads: how often the experts of each MoE layer are chosen, step by step: even, by a law, or as a run recorded it.
// Costs take from them what the slowest rank of each layer does, and emulated devices draw their routes from them.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/ir/program.h"

namespace lancet::cost {

// The MoE layers of a model, and the ranks that divide their experts.
struct RoutedModel {
  std::vector<int> blocks = {};  // of the model, that are MoE layers
  std::int64_t experts = 0;      // of a layer, over all ranks
  std::int64_t choices = 1;      // experts of a token
  int ranks = 1;                 // along `expert`, each of which has as many experts
  // The ranks on each host, by their coordinate along `expert`; empty: each rank is on a host of its own.
  std::vector<std::vector<int>> hosts = {};
  double slots = 1;        // of an expert, relative to its mean load
  bool in_rounds = false;  // choices beyond the slots take further rounds; false: they are dropped
  int micro_batches = 1;   // of a step
  std::uint64_t seed = 0;  // of the orders in which laws make experts popular
};

// What ranks do in one round of a layer, relative to even routing, which keeps all choices, or as many as there are
// slots. All ranks have as many tokens; the means are over the steps.
struct RoundLoad {
  double fullest = 1;              // rows of the experts of the rank that has most
  double fullest_host = 1;         // rows of the mean rank of the host that has most
  std::vector<double> hosts = {};  // of each host, rows of its rank that has most; empty: as `fullest`
  double kept = 1;                 // rows of the mean rank
  double least = 1;                // rows of the rank that has least
};
struct RankLoad {
  RoundLoad first;
  double rounds = 0;                  // further ones
  RoundLoad further{0, 0, {}, 0, 0};  // of one of them
};

class Loads {
 public:
  // text: "even": the same number of tokens for every expert; "zipf:S": the i-th most popular expert of a layer is
  // chosen in proportion to 1 / i^S; "zipf:S:N": likewise, but N steps later others are popular, and the shares pass
  // evenly from one order to the next, of eight; FILE or "trace:FILE": as often as in the records of a run
  // (metrics.jsonl), whose steps follow one another and then begin again. Config errors name `what`, the field or
  // option of the text: another text, a file that cannot be read or holds no counts, or counts of other layers or
  // experts.
  static Result<Loads> read(const std::string& what, const std::string& text, RoutedModel model);
  static Loads even(RoutedModel model) { return Loads(std::move(model)); }
  // steps: of each, by layer and expert, the tokens that chose it.
  static Loads recorded(RoutedModel model, const std::vector<std::vector<std::vector<double>>>& steps);

  const RoutedModel& model() const { return model_; }
  bool is_even() const { return knots_.empty(); }
  // The probabilities with which the experts of a layer are among a token's choices in a step.
  std::vector<double> chosen(int layer, std::int64_t step) const;
  // Of an instruction of an MoE layer; of a repeat, or of its body, in the part of the batch that it is.
  const RankLoad& of(const ir::Instruction& instruction) const;
  RankLoad mean() const;         // over the layers
  std::string identity() const;  // of all numbers

 private:
  explicit Loads(RoutedModel model) : model_(std::move(model)) {}
  Status read_trace(const std::string& what, const std::string& file);
  void follow_zipf(double exponent, std::int64_t steps);
  std::int64_t period() const;  // steps, after which they begin again
  RankLoad find(int layer, double from, double to) const;
  const RankLoad& known(int layer, std::int64_t part, std::int64_t parts) const;

  RoutedModel model_;
  // By knot, layer and expert, the probabilities of `chosen`, every steps_between_ steps; between them they are linear.
  std::vector<std::vector<double>> knots_;
  std::int64_t steps_between_ = 1;
  struct Known {
    std::mutex mutex;
    std::map<std::tuple<int, std::int64_t, std::int64_t>, RankLoad> loads;  // by layer, part and parts
  };
  std::shared_ptr<Known> known_ = std::make_shared<Known>();
};

}  // namespace lancet::cost
