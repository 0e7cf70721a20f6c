#include "text.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <regex>

namespace lancet::test {

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

std::vector<std::string> match(const std::string& text, const std::string& pattern) {
  std::smatch found;
  std::regex_search(text, found, std::regex(pattern));
  return {found.begin(), found.end()};
}

bool matches(const std::string& text, const std::string& pattern) { return !match(text, pattern).empty(); }

std::string match_replaced(const std::string& text, const std::string& pattern, const std::string& by) {
  REQUIRE(matches(text, pattern));
  return std::regex_replace(text, std::regex(pattern), by, std::regex_constants::format_first_only);
}

nlohmann::json json_in(const std::string& text) { return nlohmann::json::parse(text); }

nlohmann::json json_file(const std::string& path) { return nlohmann::json::parse(std::ifstream(path)); }

}  // namespace lancet::test
