#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include "config/fields.h"

#include "config/parsed.h"
#include "good.h"
#include "lancet/base/shown.h"
#include "text.h"

using namespace lancet;
using namespace lancet::config;

TEST_CASE("an empty object gives the default run") {
  const Config c = good("{}");
  CHECK(c.model.n_layer == 12);
  CHECK(c.model.n_embd == 768);
  CHECK(c.model.vocab_size == 50257);
  CHECK(c.model.padded_vocab() == 50304);
  for (const std::int64_t shards : {2, 3, 4}) CHECK(c.model.padded_vocab(shards) == 50304);
  CHECK(c.model.padded_vocab(5) == 50560);
  CHECK(c.model.inner() == 3072);
  CHECK(c.model.experts_per_rank == 2);
  CHECK(c.model.experts(4) == 8);
  CHECK(c.train.seq_len == 1024);
  CHECK(c.overlap.policy == "sequential");
  CHECK(check(c, 4).ok());
}

TEST_CASE("every kind of field is read") {
  const Config c = good(R"({
    // comments are allowed
    "model": {"n_layer": 4, "n_inner": 512, "moe_layer_freq": 2, "num_local_experts": 8, "router": "batch_prioritized",
              "router_aux_loss_scope": "global"},
    "data": {"train": "a.bin", "synthetic": true},
    "train": {"steps": 1e3, "dtype": "bf16", "lr": 1, "lr_schedule": "wsd", "sample_prompt": "Once"},
    "overlap": {"policy": "auto"}, "comm": {"transport": "self"}, "log": {"peak_tflops": 0.5},
    "device": "cuda", "threads": 3})");
  CHECK(c.model.n_layer == 4);
  CHECK(c.model.inner() == 512);
  CHECK(c.model.experts(4) == 8);
  CHECK_FALSE(c.model.experts_per_rank.has_value());
  CHECK(c.model.router == Router::batch_prioritized);
  CHECK(c.model.router_aux_loss_scope == AuxLossScope::global);
  CHECK(c.data.train == "a.bin");
  CHECK(c.data.synthetic);
  CHECK(c.train.steps == 1000);
  CHECK(c.train.dtype == DType::bf16);
  CHECK(c.train.lr == 1.0);
  CHECK(c.train.lr_schedule == LrSchedule::wsd);
  CHECK(c.train.sample_prompt == "Once");
  CHECK(c.overlap.policy == "auto");
  CHECK(c.comm.transport == Transport::self);
  CHECK(c.log.peak_tflops == 0.5);
  CHECK(c.device == Device::cuda);
  CHECK(c.threads == 3);
}

TEST_CASE("every moe_layer_freq-th block from the first one is a mixture of experts") {
  const Config c = good(R"({"model": {"n_layer": 5, "moe_layer_freq": 2}})");
  CHECK(c.model.is_moe(0));
  CHECK_FALSE(c.model.is_moe(1));
  CHECK(c.model.is_moe(4));
  CHECK(c.model.moe_layers() == 3);
  const Config dense = good(R"({"model": {"moe_layer_freq": 0}})");
  CHECK_FALSE(dense.model.is_moe(0));
  CHECK(dense.model.moe_layers() == 0);
  CHECK(dense.model.experts(4) == 0);
}

TEST_CASE("a printed config parses to the same config") {
  Config c = good("{}");
  CHECK(good(to_json(c)) == c);
  // Every field differs from its default, so that a table row with the wrong member is found.
  const std::string other = R"({
    "model": {"n_layer": 3, "n_head": 5, "n_embd": 35, "n_positions": 77, "vocab_size": 99, "n_inner": 70,
      "layer_norm_epsilon": 3e-7, "initializer_range": 0.1, "moe_layer_freq": 3, "num_local_experts": 6,
      "first_k_dense_replace": 2, "moe_intermediate_size": 35, "n_shared_experts": 2,
      "num_experts_per_tok": 2, "norm_topk_prob": true, "router": "batch_prioritized",
      "router_second_expert": "always", "router_skipped_slots": "free", "router_jitter_noise": 0.25,
      "router_aux_loss_form": "gshard", "capacity_factor": 0.3, "dropless_imbalance": 3, "router_group_size": 1, "router_aux_loss_coef": 0.123456789012345,
      "router_aux_loss_scope": "global", "router_z_loss_coef": 0.001, "router_groups": 3, "router_topk_groups": 2, "routed_scaling_factor": 2.5, "router_bias_update_rate": 0.01, "vocab_pad_multiple": 1},
    "data": {"train": "t\"\\\u00e9", "eval": "e", "tokenizer": "k", "eval_sequences": 3, "synthetic": true},
     "train": {"steps": 7, "seq_len": 11, "micro_batch_size": 2, "gradient_accumulation_steps": 4, "memory_limit_mb": 500, "pipeline_schedule": "zero_bubble", "dtype": "bf16",
      "master_weights": false, "zero": 1, "reduce_dtype": "bf16", "sequence_parallel": true, "tf32": true, "fuse_gelu": false, "deterministic": false, "optimizer": "sgd", "lr": 0.05, "min_lr": 0.001, "lr_schedule": "linear", "lr_warmup_steps": 1, "lr_decay_steps": 2,
      "weight_decay": 0.1, "adam_beta1": 0.8, "adam_beta2": 0.95, "adam_eps": 1e-6, "sgd_momentum": 0.5, "clip_grad": 1,
      "seed": 9223372036854775807, "eval_interval": 5, "on_non_finite": "skip", "max_skips": 3, "save_interval": 7, "save_minutes": 2.5, "keep_last": 2,
      "save_buffer_mb": 64, "stop_after": 21, "max_minutes": 1.5, "sample_prompt": "a\nb", "sample_tokens": 9},
    "mesh": {"data": 3, "expert": 2, "tensor": 4, "stage": 5, "stage_blocks": [1, 0]},
    "overlap": {"policy": "tutel", "bucket_bytes": 1, "profile": "p", "split_backward": false, "across_steps": false, "reach": 3, "max_parts": 2,
      "parts": 2, "groups_per_moe": 3, "replan": 5, "memory_factor": 2},
    "comm": {"timeout_s": 2.5, "transport": "mpi", "network": "n", "mirrored_ranks": 4, "device_all_to_all": "counted",
      "max_ctas": 2},
    "emulated": {"hardware": "h", "scale": 3, "dilation": 4, "routing": "zipf:1"},
    "log": {"interval": 2, "run_dir": "r", "peak_tflops": 312.5, "trace": 6, "tensorboard": true},
    "device": "cuda", "threads": 8})";
  const Config d = good(other);
  CHECK(good(to_json(d)) == d);
  // The two prints share only lines that hold no value.
  std::istringstream a(to_json(c)), b(to_json(d));
  std::string x, y;
  while (std::getline(a, x) && std::getline(b, y)) {
    const bool value = x.find(": ") != x.npos && x.back() != '{';
    if (value && x.find("experts_per_rank") == x.npos && x.find("model_type") == x.npos) CHECK(x != y);
    CHECK(x.substr(0, x.find(':')) == y.substr(0, y.find(':')));
  }
}

TEST_CASE("every field of a family is in the table, and one family has no member under two names") {
  for (const Family* family : families_known()) {
    INFO(family->name);
    CHECK(find_family(family->name) == family);
    CHECK(good(fmt::format(R"({{"model": {{"model_type": "{}"}}}})", family->name)).model.model_type == family);
    Config config;
    std::set<const void*> members;
    for (const auto& names : family->fields)
      for (const std::string_view name : names) {
        INFO(name);
        const Field* field = find_field(fmt::format("model.{}", name), *family);
        REQUIRE(field);
        const auto address = [](const auto& slot) -> const void* {
          if constexpr (requires { slot.target; })
            return slot.target;
          else
            return slot;
        };
        CHECK(members.insert(std::visit(address, field->slot(config))).second);
      }
  }
  CHECK_FALSE(find_family("bert"));
}

TEST_CASE("a family's fields have its names") {
  const Config c = good(R"({"model": {"model_type": "qwen3_moe", "hidden_size": 48, "num_hidden_layers": 6,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 10, "intermediate_size": 96, "num_experts": 16,
    "moe_intermediate_size": 24, "decoder_sparse_step": 3, "max_position_embeddings": 99, "rms_norm_eps": 1e-4,
    "rope_theta": 500, "tie_word_embeddings": true}})");
  CHECK(good(to_json(c)) == c);
  CHECK(c.model.n_embd == 48);
  CHECK(c.model.head_size() == 10);
  CHECK(c.model.key_heads() == 2);
  CHECK(c.model.inner() == 96);
  CHECK(c.model.expert_inner() == 24);
  CHECK(c.model.experts(2) == 16);
  CHECK(c.model.num_experts_per_tok == 8);
  CHECK_FALSE(c.model.norm_topk_prob);
  CHECK_FALSE(c.model.capacity_factor);
  CHECK(c.model.layer_norm_epsilon == 1e-4);
  for (std::int64_t block = 0; block < 6; ++block) CHECK(c.model.is_moe(block) == (block % 3 == 2));
  CHECK(c.model.moe_layers() == 2);
  const Config mixtral =
      good(R"({"model": {"model_type": "mixtral", "num_local_experts": 4, "intermediate_size": 20}})");
  CHECK(mixtral.model.expert_inner() == 20);
  CHECK(mixtral.model.norm_topk_prob);
  CHECK(mixtral.model.rope_theta == 1e6);
  CHECK(mixtral.model.layer_norm_epsilon == 1e-5);
  CHECK(good(R"({"model": {"model_type": "llama"}})").model.moe_layers() == 0);
  const auto scaled = [](const std::string& scaling) {
    return parse(fmt::format(R"({{"model": {{"model_type": "llama", "rope_scaling": {}}}}})", scaling), "c.json");
  };
  const Config yarn = *scaled(R"({"rope_type": "yarn", "factor": 8, "mscale": 0.5, "beta_fast": 20})");
  CHECK(good(to_json(yarn)) == yarn);
  CHECK(to_json(yarn).find(
            R"("rope_scaling": {"rope_type": "yarn", "factor": 8, "mscale": 0.5, "beta_fast": 20, "beta_slow": 1})") !=
        std::string::npos);
  CHECK(yarn.model.rope_scaling->rope_type == RopeType::yarn);
  CHECK(yarn.model.rope_scaling->beta_fast == 20);
  CHECK_FALSE(scaled("null")->model.rope_scaling);
  CHECK(scaled("4").error().message == "c.json: model.rope_scaling: expected an object {...} or null, found 4");
  CHECK(scaled(R"({"rope_type": "dynamic", "factor": 8})").error().message ==
        "c.json: model.rope_scaling.rope_type: expected one of \"linear\", \"yarn\", \"llama3\", found \"dynamic\"");
  CHECK(scaled(R"({"rope_type": "linear", "factor": 0.5})").error().message ==
        "c.json: model.rope_scaling.factor: expected a number in [1, 1000000], found 0.5");
  CHECK(scaled(R"({"rope_type": "linear", "factor": 2, "beta_fast": 4})").error().message ==
        "c.json: model.rope_scaling: unknown key 'beta_fast' of rope_type linear");
  const nlohmann::json llama3{{"rope_type", "llama3"},
                              {"factor", 8},
                              {"original_max_position_embeddings", 64},
                              {"low_freq_factor", 1},
                              {"high_freq_factor", 1}};
  CHECK(check(*scaled(llama3.dump()), 1).error().message ==
        "config: model.rope_scaling.high_freq_factor: expected above low_freq_factor = 1, found 1");
  for (const auto& [member, ignored] : llama3.items()) {
    nlohmann::json without = llama3;
    without.erase(member);
    CHECK(scaled(without.dump()).error().message ==
          "c.json: model.rope_scaling." + member + ": expected a value, found none");
    without[member] = nullptr;
    CHECK(scaled(without.dump()).error().message ==
          "c.json: model.rope_scaling." + member + ": expected a value, found null");
  }
  for (const char* const type : {"linear", "yarn"})
    CHECK(scaled(fmt::format(R"({{"rope_type": "{}"}})", type)).error().message ==
          "c.json: model.rope_scaling.factor: expected a value, found none");
  CHECK_FALSE(scaled(R"({"rope_type": "yarn", "factor": 8, "original_max_position_embeddings": null})")
                  ->model.rope_scaling->original_max_position_embeddings);
  const Config qwen2 = good(R"({"model": {"model_type": "qwen2_moe", "hidden_size": 48, "num_hidden_layers": 4,
    "decoder_sparse_step": 2, "mlp_only_layers": [1], "shared_expert_intermediate_size": 30}})");
  for (std::int64_t block = 0; block < 4; ++block) CHECK(qwen2.model.is_moe(block) == (block == 3));
  CHECK(qwen2.model.qkv_bias);
  CHECK(qwen2.model.shared_inner() == 30);
  CHECK(qwen2.model.expert_inner() == 192);
  const std::vector<std::string> none{"model.model_type=qwen2_moe", "model.mlp_only_layers=[1]",
                                      "model.num_hidden_layers=2", "model.decoder_sparse_step=2"};
  CHECK(check(good("{}", none), 1).error().message ==
        "config: expected model.decoder_sparse_step = 2 and model.mlp_only_layers = [1] that leave one of the 2 blocks "
        "(model.num_hidden_layers) experts, found none");
  const std::vector<std::string> odd{"model.model_type=qwen2_moe", "model.shared_expert_intermediate_size=15",
                                     "mesh.tensor=2"};
  CHECK(check(good("{}", odd), 2).error().message ==
        "config: mesh.tensor: expected a divisor of the 15 features (model.shared_expert_intermediate_size) of "
        "h.*.moe.shared_experts.c_fc, found 2");
  const std::vector<std::string> wide{"model.model_type=mixtral", "model.num_key_value_heads=5"};
  CHECK(check(good("{}", wide), 1).error().message ==
        "config: model.num_key_value_heads: expected a divisor of model.num_attention_heads = 12, found 5");
  CHECK(parse(R"({"model": {"model_type": "llama", "n_embd": 4}})", "c.json").error().message ==
        "c.json: model.n_embd: expected a field of model.model_type \"llama\", found one of others; here it is "
        "model.hidden_size");
  CHECK(parse(R"({"model": {"rope_theta": 4}})", "c.json").error().message ==
        "c.json: model.rope_theta: expected a field of model.model_type \"gpt2\", found one of others");
}

TEST_CASE("an unknown key names itself, the file and the nearest known key") {
  CHECK(fault(R"({"model": {"n_layers": 2}})") ==
        "c.json: unknown key 'model.n_layers'; the nearest known key is 'model.n_layer'");
  CHECK(fault(R"({"train": {"n_embd": 2}})").find("'model.n_embd'") != std::string::npos);
  CHECK(fault(R"({"modle": {}})").find("nearest known key is 'model'") != std::string::npos);
  CHECK(fault(R"({"thread": 2})").find("'threads'") != std::string::npos);
  CHECK(fault(R"({"learning_rate": 2})") == "c.json: unknown key 'learning_rate'; the nearest known key is 'train.lr'");
  CHECK(fault(R"({"train": {"accumulation_steps": 2}})").find("'train.gradient_accumulation_steps'") !=
        std::string::npos);
  CHECK(fault(R"({"model.n_layer": 2})") ==
        "c.json: expected {\"model\": {\"n_layer\": ...}}, found the key 'model.n_layer' at the top level");
}

TEST_CASE("a checkpoint's config may have fields of another version, but not of the model") {
  const auto saved = test::good(parse_saved(
      R"({"model": {"n_layer": 3}, "mesh": {"tensor": 2, "expert_counts": []}, "later": {"x": 1}, "more": 2})", "m"));
  CHECK(*saved == good(R"({"model": {"n_layer": 3}, "mesh": {"tensor": 2}})"));
  CHECK(parse_saved(R"({"model": {"n_layers": 3}})", "m").error().message ==
        "m: unknown key 'model.n_layers'; the nearest known key is 'model.n_layer'");
}

TEST_CASE("a list is of integers in the range of its field") {
  const std::string blocks = "c.json: mesh.stage_blocks: expected ";
  CHECK(fault(R"({"mesh": {"stage_blocks": 3}})") == blocks + "a list of integers, found 3");
  CHECK(fault(R"({"mesh": {"stage_blocks": [3, "1"]}})") == blocks + "an integer in [0, 10000], found \"1\"");
  CHECK(fault(R"({"mesh": {"stage_blocks": [3, -1]}})") == blocks + "an integer in [0, 10000], found -1");
}

TEST_CASE("a wrong type or value reports what was expected and found") {
  CHECK(fault(R"({"model": {"n_layer": "4"}})") ==
        "c.json: model.n_layer: expected an integer in [1, 10000], found \"4\"");
  CHECK(fault(R"({"model": {"n_layer": 2.5}})") ==
        "c.json: model.n_layer: expected an integer in [1, 10000], found 2.5");
  CHECK(fault(R"({"model": {"n_layer": 0}})") == "c.json: model.n_layer: expected an integer in [1, 10000], found 0");
  CHECK(fault(R"({"model": {"n_layer": null}})") ==
        "c.json: model.n_layer: expected an integer in [1, 10000], found null");
  CHECK(fault(R"({"model": {"n_inner": -1}})") ==
        "c.json: model.n_inner: expected an integer in [1, 16777216] or null, found -1");
  for (const char* seed : {"9223372036854775808", "18446744073709551615", "-1"})
    CHECK(fault("{}", {std::string("train.seed=") + seed}) ==
          std::string("--set train.seed: expected an integer in [0, 9223372036854775807], found ") + seed);
  CHECK(fault(R"({"train": {"adam_beta1": 1}})") == "c.json: train.adam_beta1: expected a number in [0, 1), found 1");
  CHECK(fault(R"({"train": {"adam_eps": 0}})") == "c.json: train.adam_eps: expected a number in (0, 1], found 0");
  for (const char* path : {"train.clip_grad", "train.lr", "train.min_lr"})
    for (const char* tiny : {"1e-50", "1e-46", "1.1754943e-38"})
      CHECK(fault("{}", {fmt::format("{}={}", path, tiny)}) ==
            fmt::format("--set {}: expected a number in [0, 1e+30], and if positive at least 1.2e-38, fp32's least, "
                        "found {}",
                        path, tiny));
  for (const char* path : {"train.adam_eps", "model.layer_norm_epsilon"})
    CHECK(fault("{}", {fmt::format("{}=1e-46", path)}) ==
          fmt::format("--set {}: expected a number in (0, 1], and if positive at least 1.2e-38, fp32's least, "
                      "found 1e-46",
                      path));
  CHECK(fault("{}", {"log.peak_tflops=1e-46"}).find("or null, and if positive at least 1.2e-38") != std::string::npos);
  CHECK(good("{}", {"train.adam_eps=1.2e-38"}).train.adam_eps == 1.2e-38);
  CHECK(good("{}", {"train.clip_grad=0"}).train.clip_grad == 0);
  CHECK(fault(R"({"train": {"lr": 1e999}})") == "c.json: expected JSON: number overflow parsing '1e999'");
  CHECK(fault(R"({"threads": 1025})") == "c.json: threads: expected an integer in [0, 1024], found 1025");
  CHECK(fault(R"({"data": {"synthetic": 1}})") == "c.json: data.synthetic: expected true or false, found 1");
  CHECK(fault(R"({"data": {"train": 1}})") == "c.json: data.train: expected a string, found 1");
  CHECK(fault("{}", {"train.sample_prompt=a\xff"
                     "b"})
            .find("train.sample_prompt: expected a string in UTF-8, found 'a\xff"
                  "b'") != std::string::npos);
  CHECK(fault(R"({"train": {"dtype": "fp16"}})") ==
        "c.json: train.dtype: expected one of \"fp32\", \"bf16\", found \"fp16\"");
  CHECK(fault(R"({"device": 0})") == "c.json: device: expected one of \"cpu\", \"cuda\", \"emulated\", found 0");
  CHECK(fault(R"({"model": 3})") == "c.json: model: expected an object {...}, found 3");
  CHECK(fault("[1, 2]") == "c.json: expected a JSON object {...}, found [1,2]");
  CHECK(fault(R"({"model": {"num_local_experts": 4, "experts_per_rank": 2}})").find("found both") != std::string::npos);
  CHECK(fault("{\"data\": {\"synthetic\": \"" + std::string(500, 'x') + "\"}}").size() < 200);
}

TEST_CASE("values from files are shown on one line and shortened if they are long") {
  using nlohmann::json;
  CHECK(shown(test::json_in(R"({"a": [1, -2.5, null], "b\n": "c\nd", "e": {}})")) ==
        R"({"a":[1,-2.5,null],"b\n":"c\nd","e":{}})");
  CHECK(shown(json("x")) == "\"x\"");
  CHECK(shown(json(std::string(70, 'x'))) == "\"" + std::string(59, 'x') + "...");
  CHECK(shown(json(std::string(58, 'x') + "\u20ac")) == "\"" + std::string(58, 'x') + "...");  // no split character
  CHECK(shown(json(std::vector<int>(1'000'000))).size() == 63);
  std::string deep(1'000'000, '[');
  CHECK(shown(test::json_in(deep + std::string(deep.size(), ']'))) == std::string(60, '[') + "...");
  CHECK(shown("a\nb\x7f") == "'a?b?'");
  CHECK(shown(std::string(100, 'y')) == "'" + std::string(80, 'y') + "...'");
}

TEST_CASE("a syntax error names line and column") {
  CHECK(fault("{\n  \"model\": {\n    \"n_layer\": 4,,\n  }\n}") ==
        "c.json:3:18: expected JSON: unexpected ','; expected string literal");
  CHECK(fault("{\"threads\": }").find("c.json:1:13: ") == 0);
  CHECK(fault("") == "c.json: expected JSON, found no text");
  CHECK(fault("{\n\"threads\": 1").find("c.json:2:13: ") == 0);
  CHECK(fault("{\"device\": \"\xff\"}").find("c.json:1:13: ") == 0);
}

TEST_CASE("a text of endless depth or length is an error of one short line") {
  const std::string brackets(100'000, '['), braces = [] {
    std::string text;
    for (int i = 0; i < 100'000; ++i) text += "{\"a\":";
    return text;
  }();
  const std::string expected = "expected JSON of at most 100 nested brackets, found more";
  CHECK(fault(brackets) == "c.json: " + expected);
  CHECK(fault(brackets + std::string(100'000, ']')) == "c.json: " + expected);
  CHECK(fault(braces) == "c.json: " + expected);
  CHECK(fault("{\"train\": {\"lr\": " + brackets + std::string(100'000, ']') + "}}") == "c.json: " + expected);
  for (const std::string& value : {brackets, brackets + std::string(100'000, ']')}) {
    const std::string error = fault("{}", {"train.lr=" + value});
    CHECK(error.find("--set train.lr: ") == 0);
    CHECK(error.find("expected a number") != error.npos);
    CHECK(error.size() < 200);
  }
  CHECK(fault("{\"model\": {\"n_layer\": " + std::string(90, '[') + std::string(90, ']') + "}}")
            .find("model.n_layer: expected an integer") != std::string::npos);
  for (const std::string& error :
       {fault("{}", {std::string(100'000, 'a') + "=1"}), fault("{\"" + std::string(100'000, 'a') + "\": 1}"),
        fault("{}", {"train.lr=" + std::string(100'000, 'a')})})
    CHECK(error.size() < 250);
}

TEST_CASE("a text with a NUL is refused as a file name") {
  CHECK(fault(R"({"data": {"train": "a\u0000b"}})").find("data.train: expected a string without NUL") !=
        std::string::npos);
}

TEST_CASE("a duplicate key is refused") {
  CHECK(fault(R"({"threads": 1, "threads": 2})") == "c.json: key 'threads' appears twice");
  CHECK(fault(R"({"train": {"lr": 1, "steps": 2, "lr": 3}})") == "c.json: key 'train.lr' appears twice");
  CHECK(good(R"({"data": {"train": "x"}, "train": {}})").data.train == "x");  // the same key on two levels is allowed
}

TEST_CASE("overrides are applied last and checked like the file") {
  const Config c = good(R"({"train": {"lr": 1, "steps": 5}})",
                        {"train.lr=1e-4", "train.optimizer=sgd", "data.train=a=b.bin", "train.lr=2e-4", "threads=2",
                         "model.n_inner=null", "data.synthetic=true", "train.sample_prompt=\"12\""});
  CHECK(c.train.lr == 2e-4);
  CHECK(c.train.steps == 5);
  CHECK(c.train.optimizer == Optimizer::sgd);
  CHECK(c.data.train == "a=b.bin");
  CHECK(c.data.synthetic);
  CHECK(c.threads == 2);
  CHECK(c.train.sample_prompt == "12");
  CHECK(fault("{}", {"train.lrr=1"}) ==
        "--set train.lrr=1: unknown key 'train.lrr'; the nearest known key is 'train.lr'");
  CHECK(fault("{}", {"train.lr"}).find("expected key=value") != std::string::npos);
  CHECK(fault("{}", {"train=1"}).find("is a section") != std::string::npos);
  CHECK(fault("{}", {"train.lr=fast"}) == "--set train.lr: expected a number in [0, 1e+30], found \"fast\"");
  CHECK(fault(R"({"train": {"lr": "slow"}})", {"train.lr=fast"}).find("--set train.lr: ") == 0);
  CHECK(fault(R"({"train": {"lr": "slow"}})", {"train.steps=3"}).find("c.json: train.lr: ") == 0);
  CHECK(fault(R"({"model": {"experts_per_rank": 2}})", {"model.num_local_experts=4"}) ==
        "c.json: model.experts_per_rank and --set model.num_local_experts: expected one of the two, found both");
  CHECK(fault(R"({"train": 3})", {"train.lr=1"}) == "c.json: train: expected an object {...}, found 3");
}

TEST_CASE("fields must fit each other and the number of ranks") {
  const auto error = [](std::vector<std::string> overrides, int ranks) {
    return fault(check(good("{}", overrides), ranks));
  };
  CHECK(error({"model.n_head=7"}, 1) == "config: model.n_embd: expected a multiple of model.n_head = 7, found 768");
  CHECK(error({"train.seq_len=1025"}, 1) ==
        "config: train.seq_len: expected 1 to model.n_positions = 1024, found 1025");
  CHECK(error({"model.num_experts_per_tok=9"}, 4).find("at most the layer's 8 experts") != std::string::npos);
  CHECK(error({"model.num_experts_per_tok=2"}, 4) ==
        "config: model.num_experts_per_tok: expected 1 with model.router \"switch\", found 2; model.router=top_k takes "
        "several");
  for (const char* router : {"model.router=top_k", "model.router=batch_prioritized"})
    CHECK(check(good("{}", {"model.num_experts_per_tok=8", router}), 4).ok());
  CHECK(error({"model.router=expert_choice", "model.num_experts_per_tok=2"}, 4) ==
        "config: model.num_experts_per_tok: expected 1 with model.router \"expert_choice\", found 2; "
        "model.capacity_factor is the mean number of experts per token");
  CHECK(error({"model.router=expert_choice", "model.capacity_factor=8.5"}, 4) ==
        "config: model.capacity_factor: expected at most the 8 experts with model.router \"expert_choice\", the mean "
        "number of experts per token, found 8.5");
  CHECK(error({"model.router=expert_choice", "model.norm_topk_prob=true"}, 4).find("weights are the scores") !=
        std::string::npos);
  CHECK(error({"model.router=expert_choice", "train.sample_tokens=5"}, 4) ==
        "config: train.sample_tokens: expected 0 with model.router \"expert_choice\", by which a token's experts "
        "depend on "
        "later tokens, found 5; model.router=top_k generates");
  CHECK(error({"model.router_bias_update_rate=0.01"}, 4) ==
        "config: model.router_bias_update_rate: expected 0 with model.router \"switch\", found 0.01; "
        "model.router=sigmoid "
        "has a bias, and model.router_aux_loss_coef balances any router");
  CHECK(error({"model.router_groups=2"}, 4).find("model.router=sigmoid limits a token") != std::string::npos);
  CHECK(error({"model.routed_scaling_factor=2"}, 4).find("model.router=sigmoid scales") != std::string::npos);
  CHECK(error({"model.router=sigmoid", "model.router_groups=3"}, 4) ==
        "config: model.router_groups: expected a divisor of the layer's 8 experts, found 3");
  CHECK(error({"model.router=sigmoid", "model.router_groups=4", "model.router_topk_groups=5"}, 4) ==
        "config: model.router_topk_groups: expected at most model.router_groups = 4, found 5");
  CHECK(
      error({"model.router=sigmoid", "model.num_experts_per_tok=3", "model.router_groups=4",
             "model.router_topk_groups=1"},
            4) ==
      "config: model.router_topk_groups: expected groups with at least model.num_experts_per_tok = 3 experts, found 1 "
      "of 4 groups, which have 2");
  CHECK(check(good("{}", {"model.router=sigmoid", "model.num_experts_per_tok=4", "model.router_groups=4",
                          "model.router_topk_groups=2", "model.router_bias_update_rate=0.001"}),
              4)
            .ok());
  CHECK(error({"train.min_lr=1"}, 1).find("train.min_lr") != std::string::npos);
  CHECK(check(good("{}", {"train.lr_warmup_steps=101"}), 1).ok());  // a run may be shorter than its warm-up
  CHECK(error({"comm.transport=self"}, 2).find("comm.transport") != std::string::npos);
  CHECK(error({"comm.device_all_to_all=windows"}, 2) ==
        "config: comm.device_all_to_all: expected \"auto\" or \"counted\" for device \"cpu\", found \"windows\"");
  CHECK(check(good("{}", {"comm.device_all_to_all=windows", "device=cuda"}), 2).ok());
  CHECK(check(good("{}", {"overlap.policy=lancet", "overlap.replan=2", "device=cuda"}), 2).ok());
  CHECK(error({}, 0).find("at least one rank") != std::string::npos);
  CHECK(check(good("{}", {"model.num_local_experts=8"}), 4).ok());
  CHECK(check(good("{}", {"comm.transport=self"}), 1).ok());
  CHECK(check(good("{}", {"model.moe_layer_freq=0", "model.num_local_experts=3"}), 2)
            .ok());  // dense: no experts to divide
}

TEST_CASE("every number except the seed has an upper limit") {
  // One value per row, far beyond the meaningful range; keys come from the printed default, so that no row is left out.
  std::istringstream in(to_json(good("{}")));
  std::string section;
  int bounded = 0;
  for (std::string line; std::getline(in, line);) {
    const auto quote = line.find('"');
    if (quote == line.npos) continue;
    const std::string key = line.substr(quote + 1, line.find('"', quote + 1) - quote - 1);
    std::string value = line.substr(line.find(": ") + 2);
    if (value.back() == ',') value.pop_back();
    if (value == "{") {
      section = key + ".";
      continue;
    }
    if (value[0] == '"' || value == "true" || value == "false" || key == "seed") continue;
    const std::string path = key == "threads" ? key : section + key;
    INFO(path << " = " << value);
    const std::string error = fault("{}", {path + "=1e300"});
    CHECK(error.find(path + ": expected a") != std::string::npos);
    if (error.find("expected an integer") != error.npos) fault("{}", {path + "=4611686018427387904"});
    ++bounded;
  }
  CHECK(bounded == 73);
  CHECK(good("{}", {"train.seed=9223372036854775807"}).train.seed == INT64_MAX);
}

TEST_CASE("a tensor that fits no machine is refused before any size overflows") {
  const auto error = [](std::vector<std::string> overrides, int ranks = 1) {
    return fault(check(good("{}", overrides), ranks));
  };
  CHECK(error({"train.micro_batch_size=1048576", "model.n_positions=4096"}) ==
        "config: train.micro_batch_size * train.seq_len: expected at most 2147483647 tokens, found 4294967296");
  CHECK(error({"train.micro_batch_size=1048576"}) ==
        "config: the logits (train.micro_batch_size * seq_len * model.vocab_size): expected at most 1099511627776 "
        "elements, "
        "found 5.401e+13");  // 2^20 * 1024 * 50304
  CHECK(
      error({"train.micro_batch_size=16384", "model.vocab_size=1000"}) ==
      "config: train.micro_batch_size * train.seq_len * model.num_experts_per_tok: expected at most 16777215 with MoE "
      "layers, found 16777216");
  CHECK(check(good("{}", {"train.micro_batch_size=16383", "model.vocab_size=1000"}), 1).ok());
  CHECK(check(good("{}", {"train.micro_batch_size=16384", "model.vocab_size=1000", "model.moe_layer_freq=0"}), 1).ok());
  CHECK(error({"model.vocab_size=2147483647", "train.seq_len=1", "train.micro_batch_size=1"})
            .find("the token embedding") != std::string::npos);  // 2^31 * 768
  CHECK(error({"model.n_embd=1048576", "model.n_head=1", "train.seq_len=1"}).find("the attention's weight") !=
        std::string::npos);
  CHECK(error({"model.n_positions=16777216", "model.n_embd=65544", "model.n_head=1", "train.seq_len=1"})
            .find("the position embedding") != std::string::npos);  // just above 2^40
  CHECK(error({"model.n_inner=16777216", "model.n_embd=65544", "model.n_head=1", "train.seq_len=1"})
            .find("an FFN's weight") != std::string::npos);
  CHECK(error({"model.n_inner=16777216", "train.micro_batch_size=64", "train.seq_len=1025", "model.n_positions=1025"})
            .find("an FFN's activations") != std::string::npos);
  CHECK(error({"model.num_local_experts=65536", "train.micro_batch_size=20000", "model.vocab_size=1000"})
            .find("the router's logits") != std::string::npos);
  CHECK(error({"model.num_local_experts=65536", "train.micro_batch_size=8", "model.capacity_factor=1000000"}) ==
        "config: the experts' activations (experts * capacity * the larger of model.n_embd and n_inner): expected at "
        "most "
        "1099511627776 elements, found 1.649e+12");  // 65536 * 8192 * 3072: every expert has capacity for every token
  CHECK(error({"model.num_local_experts=65536", "model.n_inner=65536"}).find("a rank's expert weights") !=
        std::string::npos);
  CHECK(error({"model.num_local_experts=65536", "model.moe_intermediate_size=65536", "train.micro_batch_size=1"}) ==
        "config: a rank's expert weights (experts * model.n_embd * moe_intermediate_size): expected at most "
        "1099511627776 elements, found 3.299e+12");
  CHECK(error({"model.n_shared_experts=65536", "model.moe_intermediate_size=65536"}).find("the shared experts'") !=
        std::string::npos);
  CHECK(error({"train.gradient_accumulation_steps=1048576", "train.micro_batch_size=1025"}).find("a step's tokens") !=
        std::string::npos);
  CHECK(error({"model.router_group_size=3"}) ==
        "config: model.router_group_size: expected a divisor of the 8 sequences of train.micro_batch_size (a group "
        "cannot span micro batches or ranks), found 3");
  CHECK(error({"model.experts_per_rank=65536"}, 2) ==
        "config: model.experts_per_rank: expected at most 65536 experts in a layer, found 131072 on 2 ranks");
  // A model of today's largest kind passes: 96 layers, 12288 wide, 64 experts.
  CHECK(check(good("{}", {"model.n_layer=96", "model.n_embd=12288", "model.n_head=96", "model.n_positions=8192",
                          "model.num_local_experts=64"}),
              64)
            .ok());
}

TEST_CASE("training needs a data file or the synthetic setting") {
  CHECK(fault(check_data(good("{}"))).find("data.train: expected a token file") != std::string::npos);
  CHECK(check_data(good("{}", {"data.synthetic=true"})).ok());
  CHECK(check_data(good("{}", {"data.train=a.bin"})).ok());
  CHECK(fault(check_data(good("{}", {"data.train=a.bin", "train.sample_tokens=5"}))).find("data.tokenizer") !=
        std::string::npos);
}

TEST_CASE("a file is loaded, a missing file is named") {
  const auto dir = std::filesystem::temp_directory_path() / "lancet_test_config";
  std::filesystem::create_directories(dir);
  std::ofstream(dir / "tiny.json") << R"({"threads": 2})";
  auto config = test::good(load(dir / "tiny.json"));
  CHECK(config->threads == 2);
  CHECK(config->log.run_dir == "runs/tiny");
  CHECK(load(dir / "none.json").error().message.find("none.json: expected a JSON config file, found no such file") !=
        std::string::npos);
  CHECK_FALSE(load(dir).ok());
  std::filesystem::remove_all(dir);
}

TEST_CASE("the shipped configs parse and fit their ranks") {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(LANCET_SOURCE_DIR "/configs")) {
    if (entry.path().extension() != ".json") continue;
    INFO(entry.path().string());
    auto config = test::good(load(entry.path()));
    const int least = int(config->mesh.tensor * config->mesh.stage);
    CHECK(check(*config, least).ok());
    CHECK(check(*config, 2 * least).ok());
    CHECK(check_data(*config).ok());
    ++count;
  }
  CHECK(count >= 5);
}

TEST_CASE("the help text has one line per field, with default and words") {
  const std::string text = describe();
  CHECK(text.find("  n_layer                      12           gpt2: in [1, 10000]; transformer blocks\n") !=
        std::string::npos);
  CHECK(text.find("how communication is overlapped with computation; lancet plan --help lists the policies") !=
        std::string::npos);
  std::size_t printed = 0;
  std::istringstream in(to_json(good("{}")));
  for (std::string line; std::getline(in, line);) printed += line.find("\": ") != line.npos && line.back() != '{';
  const auto lines = std::size_t(std::count(text.begin(), text.end(), '\n'));
  std::size_t of_others = 0;
  for (const Field& field : fields()) of_others += !field.is_of(families::gpt2);
  CHECK(of_others > 0);
  CHECK(lines == printed + of_others + 10);  // eight sections and the top level have a heading each; model.from
}
