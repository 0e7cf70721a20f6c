// docs/configuration.md ends with the list of fields that the program prints.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "lancet/config/config.h"

namespace lancet::config {
namespace {

const std::string page = LANCET_SOURCE_DIR "/docs/configuration.md";
const std::string mark = "<!-- fields: written by the test of this page -->\n";

std::string read(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("configuration page: its fields are those of the program") {
  const std::string text = read(page);
  const std::size_t at = text.find(mark);
  REQUIRE(at != std::string::npos);
  const std::string head = text.substr(0, at + mark.size());
  if (const char* update = std::getenv("LANCET_UPDATE_GOLDEN"); update && *update == '1')
    std::ofstream(page, std::ios::binary) << head << describe_markdown();
  INFO(page << " is out of date; LANCET_UPDATE_GOLDEN=1 build/tests/test_config \"configuration page*\" writes it");
  CHECK((read(page) == head + describe_markdown()));
}

TEST_CASE("configuration page: a field with a range, with words, and without a value") {
  const std::string text = describe_markdown();
  CHECK(text.find("\n## train\n\n") != std::string::npos);
  CHECK(text.find("\n- `n_layer` (default 12; in [1, 10000]): transformer blocks\n") != std::string::npos);
  CHECK(text.find("\n- `optimizer` (default \"adamw\"; adamw | sgd)\n") != std::string::npos);
  CHECK(text.find("\n- `peak_tflops` (default null; in (0, 1000000000]): ") != std::string::npos);
  CHECK(text.find("empty: runs/\\<name of this file>\n") != std::string::npos);
}

TEST_CASE("configuration page: no line is longer than 120 columns") {
  std::istringstream lines(describe_markdown());
  for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 120);
}

}  // namespace lancet::config
