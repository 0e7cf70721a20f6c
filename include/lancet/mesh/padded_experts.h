// PaddedExperts: where a layer's experts are if the ranks along the axis `expert` have unlike numbers of them.
//
// All ranks run one Program. So each has room for as many experts as the rank with the most: its own come first, in
// order, and the rest is padding, which no token reaches and whose parameters stay zero. Routers, gates and checkpoints
// know experts by their number among all, which does not count the padding; the tensors of experts by their padded
// number, which does. With 6 and 2 experts on two ranks, expert 7 has the padded number 6 + 1 among 12.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lancet::mesh {

class PaddedExperts {
 public:
  // The most ranks: a kernel has their counts among its arguments.
  static constexpr std::size_t most_ranks = 256;

  PaddedExperts() = default;  // no padding: a padded number is the number
  // The experts of each rank along `expert`, each at least 1. Where all are equal, there is no padding.
  explicit PaddedExperts(std::vector<std::int64_t> counts);

  bool pads() const { return !counts_.empty(); }
  const std::vector<std::int64_t>& counts() const { return counts_; }  // none without padding
  std::int64_t on_rank() const;  // the room of each rank: the largest count; 0 without padding
  // The number of padded numbers of a layer with these experts.
  std::int64_t padded(std::int64_t experts) const;
  std::int64_t padded_number(std::int64_t expert) const;
  // The expert of a padded number; none of padding.
  std::optional<std::int64_t> expert(std::int64_t padded_number) const;
  friend bool operator==(const PaddedExperts&, const PaddedExperts&) = default;

 private:
  std::vector<std::int64_t> counts_;
};

std::string to_string(const PaddedExperts& experts);  // the counts, "6,2"
// What to_string() writes of experts with padding; none for any other text.
std::optional<PaddedExperts> parse_padded_experts(std::string_view text);

}  // namespace lancet::mesh
