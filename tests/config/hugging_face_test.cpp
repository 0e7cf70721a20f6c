// Fields of config.json that are read with other members or values than a run config has.
#include "lancet/config/hugging_face.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "config/parsed.h"
#include "temporary_folder.h"
#include "text.h"

using namespace lancet;
using namespace lancet::config;

namespace {

using nlohmann::json;

// The config.json of this family's small model, with these fields besides.
Result<Config> read_with(const std::string& family, const json& fields, const std::vector<std::string>& accepted = {}) {
  const test::TemporaryFolder folder;
  const std::string small = LANCET_SOURCE_DIR "/tests/reference/hugging_face/" + family + "/config.json";
  json text = *test::good(read_file_config(small));
  text.update(fields);
  auto read = read_hugging_face(folder.write("config.json", json_text(text)), accepted);
  if (read.ok()) return read;
  CHECK(read.error().code == ExitCode::data);
  const std::string at = folder / "config.json: ";
  CHECK(read.error().message.starts_with(at));
  return data_error(read.error().message.substr(std::min(at.size(), read.error().message.size())));
}

std::string error_with(const std::string& family, const json& fields) {
  const auto read = read_with(family, fields);
  return read.ok() ? "" : read.error().message;
}

Result<Config> scaled(const char* scaling, const std::vector<std::string>& accepted = {}) {
  return read_with("llama", {{"rope_scaling", test::json_in(scaling)}}, accepted);
}

}  // namespace

TEST_CASE("null members of rope_scaling have their defaults, and unknown ones are accepted by name") {
  const Config yarn = *test::good(scaled(
      R"({"type": "yarn", "rope_type": "yarn", "factor": 4, "beta_fast": null, "attention_factor": null, "new": null})"));
  CHECK(yarn.model.rope_scaling->factor == 4);
  CHECK(yarn.model.rope_scaling->beta_fast == 32);
  CHECK_FALSE(yarn.model.rope_scaling->attention_factor);
  CHECK(scaled(R"({"type": "linear", "rope_type": "yarn", "factor": 4})").error().message ==
        R"(rope_scaling: expected the same type and rope_type, found {"factor":4,"rope_type":"yarn","type":"linear"})");
  CHECK(test::good(scaled(R"({"type": "yarn", "rope_type": null, "factor": 4, "truncate": true})"))
            ->model.rope_scaling->factor == 4);
  const char* const truncated = R"({"rope_type": "yarn", "factor": 4, "truncate": false})";
  CHECK(scaled(truncated).error().message ==
        "rope_scaling.truncate: expected a member of rope_type \"yarn\" that is known here, found another one; "
        "--accept-field rope_scaling.truncate passes it over");
  CHECK(test::good(scaled(truncated, {"rope_scaling.truncate"}))->model.rope_scaling->factor == 4);
  const json newer{{"rope_parameters", test::json_in(truncated)}};
  CHECK(error_with("llama", newer) ==
        "rope_parameters.truncate: expected a member of rope_type \"yarn\" that is known here, found another one; "
        "--accept-field rope_parameters.truncate passes it over");
  for (const char* const name : {"rope_parameters.truncate", "rope_scaling.truncate"})
    CHECK(test::good(read_with("llama", newer, {name}))->model.rope_scaling->factor == 4);
  for (const char* const nothing : {R"({"rope_type": "default", "factor": null})",
                                    R"({"rope_type": "default", "factor": 1.0})", R"({"type": "default"})"})
    CHECK_FALSE(test::good(scaled(nothing))->model.rope_scaling);
  CHECK(scaled(R"({"rope_type": "yarn", "factor": null})").error().message ==
        "rope_scaling.factor: expected a value, found none");
  CHECK(scaled(R"({"rope_type": "default", "factor": 4})")
            .error()
            .message.starts_with("rope_scaling.factor: expected a member of rope_type \"default\""));
  CHECK_FALSE(
      test::good(scaled(R"({"rope_type": "default", "factor": 4})", {"rope_scaling.factor"}))->model.rope_scaling);
  CHECK_FALSE(test::good(scaled(R"({"type": "default", "factor": null, "new": null})"))->model.rope_scaling);
}

TEST_CASE("a folder's llama3 has all its members, and the first that is missing is named as the file spells it") {
  const json llama3{{"rope_type", "llama3"},
                    {"factor", 8},
                    {"original_max_position_embeddings", 16},
                    {"low_freq_factor", 1},
                    {"high_freq_factor", 4}};
  CHECK(test::good(read_with("llama", {{"rope_scaling", llama3}}))->model.rope_scaling->high_freq_factor == 4);
  for (const char* const member :
       {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"}) {
    json without = llama3;
    without.erase(member);
    const std::string expected = std::string(".") + member + ": expected a value, found none";
    CHECK(error_with("llama", {{"rope_scaling", without}}) == "rope_scaling" + expected);
    without[member] = nullptr;
    CHECK(error_with("llama", {{"rope_scaling", without}}) == "rope_scaling" + expected);
    CHECK(error_with("llama", {{"rope_parameters", without}}) == "rope_parameters" + expected);
  }
}

TEST_CASE("a factor of YaRN that is not the ratio of its lengths has a warning, a rounded ratio has none") {
  const auto warning = [](const char* scaling) { return warning_of_factor(test::good(scaled(scaling))->model); };
  CHECK(warning(R"({"type": "yarn", "factor": 4})") == "");
  CHECK(warning(R"({"type": "linear", "factor": 4})") == "");
  CHECK(warning(R"({"type": "yarn", "factor": 4, "original_max_position_embeddings": 8})") == "");  // of 32
  CHECK(warning(R"({"type": "yarn", "factor": 2.667, "original_max_position_embeddings": 12})") == "");
  CHECK(warning(R"({"type": "yarn", "factor": 2.7, "original_max_position_embeddings": 12})") != "");
  CHECK(warning(R"({"type": "yarn", "factor": 4, "original_max_position_embeddings": 16})") ==
        "rope_scaling: factor 4 is taken, as by transformers 5; transformers 4 takes "
        "max_position_embeddings / original_max_position_embeddings = 2");
}

TEST_CASE("a window as long as the longest sequence changes nothing, and others are accepted by name") {
  for (const int window : {32, 4096}) {
    CHECK(error_with("mixtral", {{"sliding_window", window}}) == "");
    CHECK(error_with("qwen3", {{"sliding_window", window},
                               {"use_sliding_window", true},
                               {"layer_types", {"full_attention", "sliding_attention"}}}) == "");
  }
  CHECK(error_with("qwen3", {{"sliding_window", 32}, {"use_sliding_window", "yes"}})
            .starts_with("use_sliding_window: expected false or a sliding_window of at least max_position_embeddings = "
                         "32, found \"yes\""));
  CHECK(error_with("qwen3", {{"layer_types", {"full_attention"}}}) ==
        "layer_types: expected \"full_attention\" for each of 2 blocks, found [\"full_attention\"]; "
        "--accept-field layer_types passes it over");
  CHECK(error_with("mixtral", {{"sliding_window", 31}}) ==
        "sliding_window: expected null or at least max_position_embeddings = 32, found 31; --accept-field "
        "sliding_window passes it over");
  CHECK(error_with("qwen3", {{"sliding_window", 31}, {"use_sliding_window", true}}) ==
        "use_sliding_window: expected false or a sliding_window of at least max_position_embeddings = 32, found true; "
        "--accept-field use_sliding_window passes it over");
  CHECK(error_with("qwen3", {{"sliding_window", 32}, {"layer_types", {"linear_attention"}}})
            .starts_with("layer_types: expected \"full_attention\" for each of 2 blocks"));
  CHECK(read_with("mixtral", {{"sliding_window", 31}, {"router_jitter_noise", 0.1}},
                  {"sliding_window", "router_jitter_noise"})
            .ok());
}

TEST_CASE("errors name a folder's file once, and fields as it spells them") {
  CHECK(error_with("qwen3", {{"num_hidden_layers", 0}}) ==
        "num_hidden_layers: expected an integer in [1, 10000], found 0");
  CHECK(error_with("llama", {{"head_dim", 3}}) == "head_dim: expected an even number of at most 512, found 3");
  CHECK(error_with("llama", {{"num_key_value_heads", 3}}) ==
        "num_key_value_heads: expected a divisor of num_attention_heads = 4, found 3");
  CHECK(error_with("qwen3_moe", {{"num_experts_per_tok", 7}}) ==
        "num_experts_per_tok: expected at most the layer's 6 experts, found 7");
  CHECK(error_with("gpt2", {{"n_embd", 25}}) == "n_embd: expected a multiple of n_head = 2, found 25");
  CHECK(error_with("gpt2_moe", {{"num_local_experts", "x"}}) ==
        "num_local_experts: expected an integer in [1, 65536] or null, found \"x\"");
  json mixtral = *test::good(read_file_config(LANCET_SOURCE_DIR "/tests/reference/hugging_face/mixtral/config.json"));
  mixtral.erase("num_local_experts");
  mixtral["num_experts"] = 0;
  const test::TemporaryFolder folder;
  const std::string file = folder.write("config.json", json_text(mixtral));
  CHECK(test::refused(read_hugging_face(file)).message ==
        file + ": num_experts: expected an integer in [1, 65536] or null, found 0");
  for (const json& bad : {json(0.5), json("x")}) {
    const json rope{{"rope_theta", bad}, {"rope_type", "default"}};
    CHECK(error_with("llama", {{"rope_theta", nullptr}, {"rope_parameters", rope}}) ==
          "rope_parameters.rope_theta: expected a number in (1, 1e+30], found " + bad.dump());
  }
  CHECK(scaled(R"({"type": "linear", "factor": 0})").error().message ==
        "rope_scaling.factor: expected a number in [1, 1000000], found 0");
  CHECK(error_with("llama", {{"rope_parameters", {{"rope_type", "linear"}, {"factor", 0}}}}) ==
        "rope_parameters.factor: expected a number in [1, 1000000], found 0");
}

TEST_CASE("a name that is accepted must pass over a field of the file, which is accepted as a whole when read again") {
  const std::string small = LANCET_SOURCE_DIR "/tests/reference/hugging_face/qwen3/config.json";
  json text = *test::good(read_file_config(small));
  text["new_scale"] = 2;
  text["use_sliding_window"] = true;
  text["rope_scaling"] = test::json_in(R"({"rope_type": "yarn", "factor": 4, "truncate": false})");
  const test::TemporaryFolder folder;
  const std::string file = folder.write("config.json", json_text(text));
  std::vector<std::string> names = {"new_scale", "use_sliding_window", "rope_scaling.truncate"};
  const Config config = *test::good(read_hugging_face(file, names));
  CHECK(*test::good(read_accepted(file)) == config);
  const auto refused = [&](const std::string& name, const std::string& found) {
    names.push_back(name);
    const Error error = test::refused(read_hugging_face(file, names));
    names.pop_back();
    CHECK(error.code == ExitCode::config);
    CHECK(error.message == "--accept-field " + name + ": " + found);
  };
  for (const char* const none :
       {"new_scal", "new_scale.truncate", "rope_scaling.new_scale", "rope_scaling.", ".", "new.hidden_size"})
    refused(none, "expected a field of " + file + ", found none of that name");
  for (const char* const read :
       {"hidden_size", "use_cache", "attention_dropout", "rope_scaling", "rope_scaling.factor"})
    refused(read, "expected a field that must be accepted, found one that " + file + " is read with");
}

TEST_CASE("blocks of a dots1 have windows from max_window_layers on, unless layer_types says which") {
  const json none{{"layer_types", nullptr}, {"sliding_window", 31}};
  const auto with = [&](json fields) {
    fields.insert(none.begin(), none.end());  // where it has none of them
    return error_with("dots1", fields);
  };
  CHECK(with({{"max_window_layers", 3}}) == "");
  CHECK(with({{"max_window_layers", 2}})
            .starts_with("sliding_window: expected null or at least max_position_embeddings = 32, found 31"));
  CHECK(with({{"max_window_layers", nullptr}}).starts_with("sliding_window: expected null"));
  CHECK(with({{"max_window_layers", 2}, {"layer_types", {"full_attention", "full_attention", "full_attention"}}}) ==
        "");
  CHECK(with({{"max_window_layers", 3}, {"layer_types", {"full_attention", "full_attention", "sliding_attention"}}})
            .starts_with("layer_types: expected \"full_attention\" for each of 3 blocks"));
  CHECK(with({{"max_window_layers", 2}, {"sliding_window", 32}}) == "");
}

TEST_CASE("a dots1 takes the group with the best experts, unless topk_group says more, and scores are sigmoids") {
  const Config config = *test::good(read_with("dots1", {{"scoring_func", "sigmoid"}}));
  CHECK(config.model.router == Router::sigmoid);
  CHECK(config.model.router_groups == 4);
  CHECK(config.model.topk_groups() == 2);
  CHECK(config.model.routed_scaling_factor == 2.5);
  CHECK(config.model.n_shared_experts == 2);
  CHECK(config.model.first_k_dense_replace == 1);
  CHECK(error_with("dots1", {{"scoring_func", "softmax"}})
            .starts_with("scoring_func: expected \"noaux_tc\", found \"softmax\""));
  json text = *test::good(read_file_config(LANCET_SOURCE_DIR "/tests/reference/hugging_face/dots1/config.json"));
  text.erase("topk_group");
  const test::TemporaryFolder folder;
  text["num_experts_per_tok"] = 2;
  CHECK(test::good(read_hugging_face(folder.write("config.json", json_text(text))))->model.topk_groups() == 1);
  CHECK(error_with("dots1", {{"n_group", 3}}) == "n_group: expected a divisor of the layer's 8 experts, found 3");
}

TEST_CASE("a field that is not known and null is as one that is missing") {
  const json quantized{{"quantization_config", {{"bits", 4}}}};
  for (const char* const family : {"llama", "gpt2_moe"}) {
    CHECK(*test::good(read_with(family, {{"quantization_config", nullptr}})) ==
          *test::good(read_with(family, json::object())));
    CHECK(error_with(family, quantized).starts_with("quantization_config: expected a field of \""));
  }
}

TEST_CASE("a Mixtral with one expert a token is read") {
  const Config top1 = *test::good(read_with("mixtral", {{"num_experts_per_tok", 1}}));
  CHECK(top1.model.num_experts_per_tok == 1);
  CHECK(top1.model.norm_topk_prob);
}
