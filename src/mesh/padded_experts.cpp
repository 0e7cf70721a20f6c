#include "lancet/mesh/padded_experts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

namespace lancet::mesh {

PaddedExperts::PaddedExperts(std::vector<std::int64_t> counts) : counts_(std::move(counts)) {
  if (std::ranges::adjacent_find(counts_, std::ranges::not_equal_to()) == counts_.end()) counts_.clear();
}

std::int64_t PaddedExperts::on_rank() const { return pads() ? std::ranges::max(counts_) : 0; }

std::int64_t PaddedExperts::padded(std::int64_t experts) const {
  return pads() ? std::ssize(counts_) * on_rank() : experts;
}

std::int64_t PaddedExperts::padded_number(std::int64_t expert) const {
  std::int64_t padding = 0, end = 0;  // before the rank's experts; of the experts up to the rank's last
  for (const std::int64_t count : counts_) {
    end += count;
    if (expert < end) break;
    padding += on_rank() - count;
  }
  return expert + padding;
}

std::optional<std::int64_t> PaddedExperts::expert(std::int64_t padded_number) const {
  if (!pads()) return padded_number;
  const std::int64_t rank = padded_number / on_rank(), of_rank = padded_number % on_rank();
  if (of_rank >= counts_[std::size_t(rank)]) return std::nullopt;
  std::int64_t before = 0;
  for (std::int64_t r = 0; r < rank; ++r) before += counts_[std::size_t(r)];
  return before + of_rank;
}

std::string to_string(const PaddedExperts& experts) { return fmt::format("{}", fmt::join(experts.counts(), ",")); }

std::optional<PaddedExperts> parse_padded_experts(std::string_view text) {
  std::vector<std::int64_t> counts;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t end = std::min(rest.find(','), rest.size());
    std::int64_t count = 0;
    if (std::from_chars(rest.data(), rest.data() + end, count).ec != std::errc() || count < 1) return std::nullopt;
    counts.push_back(count);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  PaddedExperts experts(std::move(counts));
  const bool is_one = experts.pads() && experts.counts().size() <= PaddedExperts::most_ranks;
  return is_one && to_string(experts) == text ? std::optional(std::move(experts)) : std::nullopt;
}

}  // namespace lancet::mesh
