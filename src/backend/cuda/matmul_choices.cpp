#include "lancet/backend/cuda/matmul_choices.h"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <mutex>

namespace lancet::backend::cuda {
namespace {

struct Table {
  std::mutex mutex;
  std::map<std::string, MatmulAlgorithm> rows;
};
Table& table() {
  static Table it;
  return it;
}

// Parses "0123456789abcdef ...", eight words of sixteen hexadecimal digits; empty if the text is anything else.
std::optional<MatmulAlgorithm> parse_words(std::string_view text) {
  MatmulAlgorithm words;
  if (text.size() != words.size() * 17 - 1) return std::nullopt;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = text.substr(i * 17, 16);
    const auto [end, fault] = std::from_chars(word.data(), word.data() + word.size(), words[i], 16);
    if (fault != std::errc() || end != word.data() + word.size()) return std::nullopt;
    if (i + 1 < words.size() && text[i * 17 + 16] != ' ') return std::nullopt;
  }
  return words;
}

}  // namespace

std::optional<MatmulAlgorithm> find_matmul_choice(const std::string& key) {
  const std::lock_guard lock(table().mutex);
  const auto at = table().rows.find(key);
  return at == table().rows.end() ? std::nullopt : std::optional(at->second);
}

void keep_matmul_choice(const std::string& key, const MatmulAlgorithm& algorithm) {
  const std::lock_guard lock(table().mutex);
  table().rows[key] = algorithm;
}

std::string matmul_choices() {
  const std::lock_guard lock(table().mutex);
  std::string text;
  for (const auto& [key, words] : table().rows) {
    text += key;
    for (std::size_t i = 0; i < words.size(); ++i) text += fmt::format("{}{:016x}", i ? " " : " = ", words[i]);
    text += '\n';
  }
  return text;
}

Status add_matmul_choices(std::string_view text) {
  std::map<std::string, MatmulAlgorithm> rows;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty()) continue;
    const std::size_t mark = line.rfind(" = ");
    const auto words = mark == std::string_view::npos ? std::nullopt : parse_words(line.substr(mark + 3));
    if (!words || mark == 0)
      return config_error(fmt::format(
          "matrix product choices, line {}: expected 'product = eight words of sixteen hexadecimal digits', "
          "found '{}'",
          number, line.substr(0, 120)));
    rows.insert_or_assign(std::string(line.substr(0, mark)), *words);
  }
  const std::lock_guard lock(table().mutex);
  for (const auto& [key, words] : rows) table().rows.insert_or_assign(key, words);
  return {};
}

}  // namespace lancet::backend::cuda
