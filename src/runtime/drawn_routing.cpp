// A token draws a uniform number u by its place in the rank's micro batch, so a part of a micro batch draws what the
// whole draws. The experts divide [0, K) among them by the probabilities with which they are among a token's K choices,
// none of which is more than 1, and the token chooses the experts in whose ranges u, u + 1, ... and u + K - 1 are
// (systematic sampling): no expert twice, and each as often as its probability says. Experts that are not chosen have
// the score 0. The score of the first choice differs from token to token, because batch-prioritized gates order tokens
// by score.
#include "drawn_routing.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "lancet/base/random.h"

namespace lancet::runtime {
namespace {

constexpr float least_score = 4;  // of the chosen expert: its probability is then near 1

}  // namespace

void DrawnRouting::draw(int layer, std::int64_t pass, int place, std::int64_t first, std::span<float> scores) const {
  const cost::RoutedModel& model = loads_->model();
  const auto experts = static_cast<std::size_t>(model.experts), tokens = scores.size() / experts;
  const auto choices = static_cast<std::size_t>(model.choices);
  std::fill(scores.begin(), scores.end(), 0.f);
  std::vector<double> ends = loads_->chosen(layer, pass / model.micro_batches);  // of the experts' ranges in [0, K)
  std::partial_sum(ends.begin(), ends.end(), ends.begin());
  ends.back() = double(choices);
  const Philox random(model.seed, stream_of(fmt::format("routing {} {} {}", layer, pass, place)));
  for (std::size_t t = 0; t < tokens; ++t) {
    const auto token = static_cast<std::uint64_t>(first) + t;
    const auto words = random.block(token);
    const auto own = scores.subspan(t * experts, experts);
    for (std::size_t k = 0; k < choices; ++k) {
      std::size_t expert = (token + k) % experts;
      if (!loads_->is_even()) {
        const double u = (double(words[0]) + 0.5) * 0x1p-32 + double((words[2] + k) % choices);
        expert = static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), u) - ends.begin());
      }
      own[expert] =
          k == 0 ? least_score + float(words[1] >> 8) * 0x1p-24f : least_score * float(choices - k) / float(choices);
    }
  }
}

}  // namespace lancet::runtime
