// The config.json of exports.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "good.h"
#include "models/files.h"
#include "temporary_folder.h"
#include "text.h"

using namespace lancet;

namespace {

nlohmann::json exported(const std::string& fields) {
  const auto config = test::good(config::parse("{\"model\": {" + fields + "}}", "c.json"));
  return test::json_in(*test::good(models::config_text(config->model, {})));
}

}  // namespace

TEST_CASE("an export has no null members of rope_scaling") {
  CHECK(exported(R"("model_type": "llama", "rope_scaling": {"rope_type": "yarn", "factor": 4})")["rope_scaling"] ==
        test::json_in(R"({"rope_type": "yarn", "factor": 4, "beta_fast": 32, "beta_slow": 1})"));
}

TEST_CASE("an export has the width of a head where it is not that of a row over its heads, or not the default") {
  const std::string experts = R"("num_experts": 4, "model_type": )";
  for (const char* const family : {"\"olmoe\"", "\"qwen2_moe\"", "\"qwen3_moe\""}) {
    CHECK_FALSE(exported(experts + family).contains("head_dim"));
    CHECK(exported(experts + family + ", \"head_dim\": 32")["head_dim"] == 32);
  }
  CHECK(exported(R"("model_type": "qwen3")")["head_dim"] == 128);
  CHECK(exported(R"("model_type": "qwen3", "head_dim": null)")["head_dim"] == 64);
}

TEST_CASE("an export keeps its source's ids and null fields, and names the number of experts as transformers 4 does") {
  const test::TemporaryFolder folder;
  const std::string small = LANCET_SOURCE_DIR "/tests/reference/hugging_face/mixtral/config.json";
  const nlohmann::json before = *test::good(config::read_file_config(small));
  for (const char* const ids : {"-1", "[2, -1]", "null"}) {
    nlohmann::json text = before;
    text["eos_token_id"] = test::json_in(ids);
    text["pad_token_id"] = -1;
    text["quantization_config"] = nullptr;
    nlohmann::json written = text;
    written["num_experts"] = text["num_local_experts"];
    written.erase("num_local_experts");
    const auto config = test::good(config::read_hugging_face(folder.write("config.json", json_text(written))));
    CHECK(test::json_in(*test::good(models::config_text(config->model, {.source = folder / ""}))) == text);
  }
}

TEST_CASE("an export keeps the members of its source's rope_scaling, those that were accepted too") {
  const test::TemporaryFolder folder;
  const std::string small = LANCET_SOURCE_DIR "/tests/reference/hugging_face/llama/config.json";
  nlohmann::json text = *test::good(config::read_file_config(small));
  text["rope_scaling"] = test::json_in(R"({"type": "yarn", "factor": 4, "beta_fast": null, "truncate": false})");
  const auto config = test::good(config::read_hugging_face(folder.write("config.json", json_text(text)),
                                                           std::vector<std::string>{"rope_scaling.truncate"}));
  CHECK(test::json_in(*test::good(models::config_text(config->model, {.source = folder / ""}))) == text);
}
