// The text that a run generates and logs at its end.
#include <catch2/catch.hpp>

#include "lancet/data/tokenizer.h"
#include "log_capture.h"
#include "train/runs.h"

namespace lancet {

TEST_CASE("the sample is logged as valid UTF-8") {
  const test::TemporaryFolder folder;
  std::vector<std::string> tokens;  // bytes alone, so that a model without training generates invalid text
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
  const test::LogCapture log;
  REQUIRE(test::train_run(config, 1).code == ExitCode::done);
  CHECK(log.count("sample: The caf\xc3\xa9 ") == 1);
  CHECK(log.text().find("\xef\xbf\xbd") != std::string::npos);
  CHECK(data::replace_invalid_utf8(log.text()) == log.text());
}

}  // namespace lancet
