// Golden texts: the output of a pass is compared with tests/golden/<file>, line by line. With LANCET_UPDATE_GOLDEN=1 in
// the environment the files are written again; read the difference before you commit it.
#pragma once
#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

namespace lancet::test {

inline std::string golden_path(std::string_view file) {
  return std::string(LANCET_SOURCE_DIR "/tests/golden/") + std::string(file);
}

inline std::string read_golden(std::string_view file) {
  std::ifstream in(golden_path(file), std::ios::binary);
  if (!in) FAIL("expected a file " << golden_path(file) << ", found none (LANCET_UPDATE_GOLDEN=1 writes it)");
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// Returns the first line that differs, with some lines before it.
inline std::string difference(const std::string& expected, const std::string& found) {
  std::istringstream a(expected), b(found);
  std::string x, y, before;
  for (int line = 1;; ++line) {
    const bool more_a = bool(std::getline(a, x)), more_b = bool(std::getline(b, y));
    if (!more_a && !more_b) return "";
    if (!more_a) x = "(end of file)";
    if (!more_b) y = "(end of file)";
    if (x != y || more_a != more_b) return before + "line " + std::to_string(line) + ":\n  - " + x + "\n  + " + y;
    before = "    " + x + "\n";
  }
}

inline void require_golden(std::string_view file, const std::string& found) {
  if (const char* update = std::getenv("LANCET_UPDATE_GOLDEN"); update && *update == '1')
    std::ofstream(golden_path(file), std::ios::binary) << found;
  const std::string expected = read_golden(file);
  INFO(golden_path(file) << ", - expected, + found:\n" << difference(expected, found));
  REQUIRE((expected == found));
}

}  // namespace lancet::test
