// Texts in tests: pieces replaced, regular expressions and JSON, whose templates are compiled once, in text.cpp, since
// they take seconds in each source that uses them.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace lancet::test {

// `text` with `from`, which must be in it, replaced where it is first found.
std::string replaced(std::string text, const std::string& from, const std::string& to);

// The first match of a regular expression anywhere in `text`, then its groups; empty without a match.
std::vector<std::string> match(const std::string& text, const std::string& pattern);
bool matches(const std::string& text, const std::string& pattern);

// `text` with the first match of a regular expression, which must be in it, replaced; $1 is its first group.
std::string match_replaced(const std::string& text, const std::string& pattern, const std::string& by);

// The value of a JSON text; nlohmann::json::parse_error if it is none.
nlohmann::json json_in(const std::string& text);
nlohmann::json json_file(const std::string& path);

}  // namespace lancet::test
