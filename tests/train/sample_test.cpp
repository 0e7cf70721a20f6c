// The text that a run generates and logs at its end.
#include <catch2/catch.hpp>

#include "lancet/base/utf8.h"
#include "lancet/data/tokenizer.h"
#include "log_capture.h"
#include "train/runs.h"

namespace lancet {

namespace {

// A run of one step that ends with a sample of 30 tokens. Tokens are bytes alone, so that a model without training
// generates invalid text.
config::Config sampled_run(const test::TemporaryFolder& folder) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  const auto tokenizer = data::Tokenizer::make(tokens, {});
  REQUIRE(tokenizer.ok());
  REQUIRE(tokenizer->save(folder / "tok").ok());
  auto config = test::config_in(folder / "run");
  config.model.vocab_size = 256;
  config.data.tokenizer = folder / "tok";
  config.train.steps = 1;
  config.train.sample_prompt = "The caf\xc3\xa9 ";
  config.train.sample_tokens = 30;
  return config;
}

}  // namespace

TEST_CASE("the sample is logged as valid UTF-8") {
  const test::TemporaryFolder folder;
  const config::Config config = sampled_run(folder);
  const test::LogCapture log;
  REQUIRE(test::train_run(config, 1).code == ExitCode::done);
  CHECK(log.count("sample: The caf\xc3\xa9 ") == 1);
  CHECK(log.text().find("\xef\xbf\xbd") != std::string::npos);
  CHECK(replace_invalid_utf8(log.text()) == log.text());
}

TEST_CASE("stages: the sample of a run is the text of one rank") {
  const auto sample_of = [](int stages) {
    const test::TemporaryFolder folder;
    config::Config config = sampled_run(folder);
    config.mesh.stage = stages;
    const test::LogCapture log;
    REQUIRE(test::train_run(config, stages).code == ExitCode::done);
    const std::string text = log.text();
    const std::size_t start = text.find("sample: ");
    REQUIRE(start != text.npos);
    std::string sample = text.substr(start, text.find('\n', start) - start);
    CHECK(log.count(sample) == stages);  // ranks that are threads share a log
    return sample;
  };
  const std::string expected = sample_of(1);
  CHECK(expected.starts_with("sample: The caf\xc3\xa9 "));
  for (const int stages : {2, 4}) CHECK(sample_of(stages) == expected);
}

}  // namespace lancet
