#include "lancet/base/json.h"

#include <catch2/catch.hpp>

using namespace lancet;

namespace {

std::string refused(const std::string& text) {
  const auto read = parse_json(text, "f.json", ExitCode::data);
  REQUIRE_FALSE(read.ok());
  CHECK(read.error().code == ExitCode::data);
  return read.error().message;
}

}  // namespace

TEST_CASE("a JSON text gives its tree, or an error of one line with the position") {
  CHECK(parse_json(R"({"a": [1, 2]})", "f.json", ExitCode::data)->at("a").at(1) == 2);
  CHECK(refused("{\n  \"a\": 1,\n  ,}").starts_with("f.json:3:3: expected JSON: unexpected ','"));
  CHECK(refused(std::string("{}\n\0{", 5)) == "f.json:2:1: expected JSON, found a NUL byte");
  for (const char* blank : {"", " \n"}) CHECK(refused(blank) == "f.json: expected JSON, found no text");
  CHECK(refused("[").starts_with("f.json:1:2: expected JSON: unexpected end of input"));
  CHECK(refused("9E9999999") == "f.json: expected JSON: number overflow parsing '9E9999999'");
  CHECK(refused(R"({"a": {"b": 1, "c": 2, "b": 3}})") == "f.json: key 'a.b' appears twice");
  CHECK(refused(R"({"a": [1, {"b": [2]}, {"c": 3, "c": 4}]})") == "f.json: key 'a[2].c' appears twice");
  CHECK(parse_json(R"([{"a": 1}, {"a": 1}])", "f.json", ExitCode::data).ok());  // in two objects
}

TEST_CASE("JSON nests up to the limit and no deeper") {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  CHECK(parse_json(nested(most_json_depth), "f.json", ExitCode::data).ok());
  for (const std::string& text : {nested(most_json_depth + 1), nested(100'000), std::string(100'000, '[')})
    CHECK(refused(text) == "f.json: expected JSON of at most 100 nested brackets, found more");
}

TEST_CASE("comments are skipped where they are allowed") {
  const std::string text = "// a\n{/* b */\"c\": 3}";
  CHECK(parse_json(text, "f.json", ExitCode::config, JsonComments::ignored)->at("c") == 3);
  CHECK(refused(text).starts_with("f.json:1:1: expected JSON"));
}

TEST_CASE("an ordered tree keeps the order of the text") {
  const auto tree = parse_json<nlohmann::ordered_json>(R"({"b":1,"a":2})", "f.json", ExitCode::data);
  REQUIRE(tree.ok());
  CHECK(tree->dump() == R"({"b":1,"a":2})");
}
