#include "lancet/ir/block.h"

#include <charconv>

namespace lancet::ir {

std::optional<std::int32_t> block_of(std::string_view label) {
  constexpr std::string_view blocks = "h.";
  if (!label.starts_with(blocks)) return std::nullopt;
  label.remove_prefix(blocks.size());
  std::int32_t block = 0;
  const auto [end, error] = std::from_chars(label.data(), label.data() + label.size(), block);
  const bool whole = end == label.data() + label.size() || *end == '.';
  return error == std::errc() && whole && block >= 0 ? std::optional(block) : std::nullopt;
}

}  // namespace lancet::ir
