#include "lancet/ir/micro_batch_name.h"

#include <fmt/format.h>

#include <charconv>

namespace lancet::ir {
std::string of_micro_batch(std::string_view name, std::int32_t micro_batch) {
  return micro_batch == 0 ? std::string(name) : fmt::format("{}@{}", name, micro_batch);
}

OfMicroBatch parse_micro_batch(std::string_view text) {
  constexpr std::int32_t most = 1 << 20;  // as many micro batches as a step may have
  const OfMicroBatch first{text, 0};
  const std::size_t at = text.rfind('@');
  if (at == text.npos || at + 1 == text.size() || text[at + 1] == '0') return first;
  std::int32_t number = 0;
  const auto [end, error] = std::from_chars(text.data() + at + 1, text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number > most) return first;
  if (number < 1 && text.substr(at + 1) != "-1") return first;
  return {text.substr(0, at), number};
}

}  // namespace lancet::ir
