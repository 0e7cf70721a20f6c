// The mesh, the router and the widths of a config, what does not fit, and the page that lists the fields.
#include <fmt/ranges.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "config/fields.h"
#include "config/parsed.h"
#include "good.h"

using namespace lancet;
using namespace lancet::config;

TEST_CASE("the mesh gives expert what the experts can be split among, and data the rest") {
  const auto mesh = [](std::vector<std::string> overrides, int ranks) {
    const auto made = test::good(make_mesh(good("{}", overrides), ranks));
    return to_string(*made);
  };
  CHECK(mesh({}, 1) == "1 rank");
  CHECK(mesh({}, 4) == "expert 4");  // two experts a rank
  CHECK(mesh({"model.num_local_experts=8"}, 4) == "expert 4");
  CHECK(mesh({"model.num_local_experts=6"}, 4) == "data 2 x expert 2");
  CHECK(mesh({"model.num_local_experts=2"}, 4) == "data 2 x expert 2");
  CHECK(mesh({"model.num_local_experts=4"}, 3) == "data 3");
  CHECK(mesh({"model.num_local_experts=6"}, 12) == "data 2 x expert 6");
  CHECK(mesh({"model.moe_layer_freq=0"}, 4) == "data 4");
  CHECK(mesh({"mesh.data=2"}, 4) == "data 2 x expert 2");
  CHECK(mesh({"mesh.expert=2"}, 4) == "data 2 x expert 2");
  CHECK(mesh({"mesh.expert=1"}, 4) == "data 4");
  CHECK(mesh({"mesh.data=4", "mesh.expert=2"}, 8) == "data 4 x expert 2");
  CHECK(mesh({"mesh.data=4", "model.moe_layer_freq=0"}, 4) == "data 4");
  CHECK(good("{}", {"mesh.expert=2"}).model.experts(2) == 4);  // experts_per_rank: of each coordinate
}

TEST_CASE("a mesh that does not fit is refused in one line") {
  const auto error = [](std::vector<std::string> overrides, int ranks) {
    return fault(check(good("{}", overrides), ranks));
  };
  const std::string product = "config: mesh: expected axes whose product is the 4 ranks, found data ";
  CHECK(error({"mesh.data=3"}, 4) == product + "3, expert null, tensor 1, stage 1");
  CHECK(error({"mesh.data=2", "mesh.expert=1"}, 4) == product + "2, expert 1, tensor 1, stage 1");
  CHECK(error({"mesh.data=8", "mesh.expert=4"}, 4) == product + "8, expert 4, tensor 1, stage 1");
  CHECK(error({"mesh.data=2", "model.moe_layer_freq=0"}, 4) == product + "2, expert null, tensor 1, stage 1");
  CHECK(error({"mesh.expert=4", "model.num_local_experts=6"}, 4) ==
        "config: mesh.expert: expected a divisor of the 6 experts (model.num_local_experts) of the tensors "
        "h.*.moe.experts, found 4");
  CHECK(error({"mesh.data=1", "model.num_local_experts=2"}, 4).ends_with("h.*.moe.experts, found 4"));
  CHECK(error({"mesh.expert=2", "model.moe_layer_freq=0"}, 4) ==
        "config: mesh.expert: expected 1 for a dense model (model.moe_layer_freq = 0), found 2");
  CHECK(error({"mesh.tensor=5"}, 5) ==
        "config: mesh.tensor: expected a divisor of the 12 heads (model.n_head) of h.*.attn.c_attn, found 5");
  CHECK(error({"mesh.tensor=3", "model.n_inner=32"}, 3) ==
        "config: mesh.tensor: expected a divisor of the 32 features (model.n_inner) of h.*.mlp.c_fc and "
        "h.*.moe.experts.c_fc, found 3");
  CHECK(error({"mesh.tensor=3", "model.moe_intermediate_size=32"}, 3) ==
        "config: mesh.tensor: expected a divisor of the 32 features (model.moe_intermediate_size) of "
        "h.*.moe.experts.c_fc, found 3");
  CHECK(check(good("{}",
                   {"mesh.tensor=3", "model.n_inner=32", "model.moe_intermediate_size=33", "model.moe_layer_freq=1"}),
              3)
            .ok());  // no block has an FFN of n_inner features
  CHECK(error({"mesh.tensor=3", "train.sequence_parallel=true", "train.seq_len=32"}, 3) ==
        "config: train.seq_len: expected a multiple of mesh.tensor = 3 with train.sequence_parallel, found 32");
  CHECK(check(good("{}", {"mesh.tensor=3", "train.sequence_parallel=false", "train.seq_len=32"}), 3).ok());
  const auto cut = [](const std::string& blocks) {
    return std::vector<std::string>{"mesh.stage=2", "model.n_layer=4", "mesh.stage_blocks=" + blocks};
  };
  for (const char* sound : {"[]", "[1,3]", "[4,0]"}) CHECK(check(good("{}", cut(sound)), 2).ok());
  for (const auto& [given, found] :
       {std::pair("[4]", "[4]"), {"[1,2]", "[1, 2]"}, {"[0,4]", "[0, 4]"}, {"[2,1,1]", "[2, 1, 1]"}})
    CHECK(
        error(cut(given), 2) ==
        std::string("config: mesh.stage_blocks: expected 2 numbers for mesh.stage = 2, whose sum is model.n_layer = 4, "
                    "none of them 0 but the last, found ") +
            found);
  CHECK(error({"mesh.stage=3", "model.n_layer=2"}, 3) ==
        "config: mesh.stage: expected at most 2, the number of blocks of the model (model.n_layer), found 3");
}

TEST_CASE("errors of the mesh have the names that the family has for its fields") {
  const auto error = [](std::vector<std::string> overrides, int ranks) {
    for (const char* of_family :
         {"model.model_type=qwen3_moe", "model.num_hidden_layers=2", "model.num_attention_heads=6",
          "model.num_key_value_heads=3", "model.head_dim=8", "model.hidden_size=24", "model.num_experts=4"})
      overrides.insert(overrides.begin(), of_family);
    return test::refused(make_mesh(good("{}", overrides), ranks)).message;
  };
  CHECK(error({"mesh.stage=3"}, 3) ==
        "config: mesh.stage: expected at most 2, the number of blocks of the model (model.num_hidden_layers), found 3");
  CHECK(error({"mesh.stage=2", "mesh.stage_blocks=[1,2]"}, 2) ==
        "config: mesh.stage_blocks: expected 2 numbers for mesh.stage = 2, whose sum is model.num_hidden_layers = 2, "
        "none of them 0 but the last, found [1, 2]");
  CHECK(error({"mesh.stage=2", "train.pipeline_schedule=interleaved"}, 2) ==
        "config: train.pipeline_schedule: expected at least 4 blocks of the model (model.num_hidden_layers) for "
        "\"interleaved\" on 2 stages, found 2");
  CHECK(error({"mesh.expert=3"}, 3) ==
        "config: mesh.expert: expected a divisor of the 4 experts (model.num_experts) of the tensors h.*.moe.experts, "
        "found 3");
  CHECK(error({"mesh.tensor=2", "model.moe_intermediate_size=8"}, 2) ==
        "config: mesh.tensor: expected a divisor of the 3 key heads (model.num_key_value_heads) of h.*.attn.c_attn, "
        "found 2");
}

TEST_CASE("rotated heads have an even number of features, as many as the kernels take") {
  for (const char* size : {"33", "514"})
    CHECK(fault(check(good("{}", {"model.model_type=llama", std::string("model.head_dim=") + size}), 1)) ==
          std::string("config: model.head_dim: expected an even number of at most 512, found ") + size);
  CHECK(check(good("{}", {"model.model_type=llama", "model.head_dim=512"}), 1).ok());
}

TEST_CASE("a router takes the experts per token and the fields that it has a use for") {
  const auto error = [](const std::vector<std::string>& overrides) { return fault(check(good("{}", overrides), 4)); };
  CHECK(error({"model.router=gshard"}) ==
        "config: model.num_experts_per_tok: expected 2 with model.router \"gshard\", found 1; model.router=top_k takes "
        "any number");
  for (const std::string router : {"hash", "random"}) {
    CHECK(error({"model.router=" + router, "model.num_experts_per_tok=2"}) ==
          "config: model.num_experts_per_tok: expected 1 with model.router \"" + router +
              "\", found 2; model.router=top_k takes several");
    CHECK(error({"model.router=" + router, "model.router_jitter_noise=0.01"}) ==
          "config: model.router_jitter_noise: expected 0 with model.router \"" + router +
              "\", which has no scores, found 0.01; model.router=switch takes it");
    CHECK(error({"model.router=" + router, "model.norm_topk_prob=true"}) ==
          "config: model.norm_topk_prob: expected false with model.router \"" + router +
              "\", whose weights are 1, found true");
    CHECK(check(good("{}", {"model.router=" + router}), 4).ok());
  }
  CHECK(error({"model.router_second_expert=always"}) ==
        "config: model.router_second_expert: expected \"random\" with model.router \"switch\", found \"always\"; "
        "model.router=gshard takes it");
  const std::vector<std::string> of_gshard{"model.router_second_expert=always", "model.router_skipped_slots=free",
                                           "model.router_aux_loss_form=gshard"};
  for (const std::string& field : of_gshard) {
    CHECK(error({"model.router=top_k", field}).find("model.router=gshard takes it") != std::string::npos);
    CHECK(check(good("{}", {"model.router=gshard", "model.num_experts_per_tok=2", field}), 4).ok());
    CHECK(check(good("{}", {"model.moe_layer_freq=0", field}), 4).ok());
  }
  for (const std::string router : {"switch", "top_k", "batch_prioritized", "sigmoid"})  // weights are 1
    CHECK(check(good("{}", {"model.router=" + router, "model.norm_topk_prob=true"}), 4).ok());
  CHECK(fault("{}", {"model.router_jitter_noise=1"}).find("router_jitter_noise") != std::string::npos);
}

TEST_CASE("the first blocks can be dense, and the blocks of experts that are left are counted") {
  for (std::int64_t layers = 1; layers <= 7; ++layers)
    for (std::int64_t freq = 0; freq <= 4; ++freq)
      for (std::int64_t first = 0; first <= 8; ++first) {
        Config c = good("{}");
        c.model.n_layer = layers;
        c.model.moe_layer_freq = freq;
        c.model.first_k_dense_replace = first;
        std::int64_t blocks = 0;
        for (std::int64_t i = 0; i < layers; ++i) {
          CHECK(c.model.is_moe(i) == (freq > 0 && i % freq == 0 && i >= first));
          blocks += c.model.is_moe(i);
        }
        CHECK(c.model.moe_layers() == blocks);
        CHECK(c.model.has_moe() == (blocks > 0));
        CHECK(c.model.has_dense_ffn() == (blocks < layers));
        CHECK(check(c, 1).ok() == (blocks > 0 || freq == 0));
      }
  const Error refused = test::refused(check(good("{}", {"model.first_k_dense_replace=11", "model.n_layer=12"}), 1));
  CHECK(refused.code == ExitCode::config);
  CHECK(refused.message ==
        "config: model.first_k_dense_replace: expected one that leaves a block of experts (a multiple of "
        "model.moe_layer_freq = 2 below n_layer = 12), found 11; model.moe_layer_freq=0 makes a dense model");
}

TEST_CASE("experts have a width of their own, and shared experts are as wide as several") {
  const Config c = good("{}", {"model.moe_intermediate_size=100", "model.n_shared_experts=3"});
  CHECK(c.model.inner() == 3072);
  CHECK(c.model.expert_inner() == 100);
  CHECK(c.model.shared_inner() == 300);
  const Config plain = good("{}", {"model.n_inner=50"});
  CHECK(plain.model.expert_inner() == 50);
  CHECK(plain.model.shared_inner() == 0);
}

namespace {

const std::string page = LANCET_SOURCE_DIR "/docs/configuration.md";
const std::string mark = "<!-- fields: written by the test of this page -->\n";

std::string read(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

// An item of a Markdown list, wrapped at 120 columns.
std::string list_item(std::string_view words) {
  constexpr std::size_t columns = 120;
  std::string text, line = "-";
  while (!words.empty()) {
    const std::size_t end = std::min(words.find(' '), words.size());
    if (line.size() + 1 + end > columns) {
      text += line + '\n';
      line = " ";
    }
    line.append(" ").append(words.substr(0, end));
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return text + line + '\n';
}

// Escapes '<', which would begin a tag.
std::string escaped(std::string_view doc) {
  std::string text;
  for (char c : doc) text += c == '<' ? "\\<" : std::string(1, c);
  return text;
}

// A heading per section and a list item per field.
std::string described() {
  std::string text;
  std::string_view section = "?";
  for (const Field& field : fields()) {
    if (section_of(field.path) != section) {
      section = section_of(field.path);
      text += fmt::format("\n## {}\n\n", section.empty() ? "Top level" : section);
    }
    Config defaults = defaults_of(field);
    const Slot slot = field.slot(defaults);
    const Choice* choice = std::get_if<Choice>(&slot);
    const std::string values = choice ? fmt::format("{}", fmt::join(choice->words, " | ")) : to_string(field.range);
    text +=
        list_item(fmt::format("`{}` (default {}{}{}){}{}", key_of(field.path), value_text(slot),
                              values.empty() ? "" : "; ", values, field.doc.empty() ? "" : ": ", escaped(field.doc)));
  }
  return text;
}

}  // namespace

TEST_CASE("configuration page: its fields are those of the program") {
  const std::string text = read(page);
  const std::size_t at = text.find(mark);
  REQUIRE(at != std::string::npos);
  const std::string head = text.substr(0, at + mark.size());
  if (const char* update = std::getenv("LANCET_UPDATE_GOLDEN"); update && *update == '1')
    std::ofstream(page, std::ios::binary) << head << described();
  INFO(page << " is out of date; LANCET_UPDATE_GOLDEN=1 build/tests/test_config \"configuration page*\" writes it");
  CHECK((read(page) == head + described()));
}

TEST_CASE("configuration page: a field with a range, with words, and without a value") {
  const std::string text = described();
  CHECK(text.find("\n## train\n\n") != std::string::npos);
  CHECK(text.find("\n- `n_layer` (default 12; in [1, 10000]): transformer blocks\n") != std::string::npos);
  CHECK(text.find("\n- `optimizer` (default \"adamw\"; adamw | sgd)\n") != std::string::npos);
  CHECK(text.find("\n- `peak_tflops` (default null; in (0, 1000000000]): ") != std::string::npos);
  CHECK(text.find("empty: runs/\\<name of this file>\n") != std::string::npos);
}

TEST_CASE("configuration page: no line is longer than 120 columns") {
  std::istringstream lines(described());
  for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 120);
}

TEST_CASE("fields without effect are listed by the reason, if they are not the defaults") {
  using Lines = std::vector<std::string>;
  const auto lines = [](std::vector<std::string> overrides, int ranks = 1) {
    return without_effect(good("{}", overrides), ranks);
  };
  CHECK(lines({}).empty());
  CHECK(lines({"model.moe_layer_freq=0"}).empty());
  const std::vector<std::string> router{"model.router=top_k", "model.num_experts_per_tok=2", "train.lr_decay_steps=4"};
  CHECK(lines(router) == Lines{"train.lr_decay_steps changes nothing unless train.lr_schedule is \"wsd\""});
  std::vector<std::string> dense = router;
  dense.push_back("model.moe_layer_freq=0");
  CHECK(lines(dense) == Lines{"model.num_experts_per_tok, model.router change nothing in a dense model",
                              "train.lr_decay_steps changes nothing unless train.lr_schedule is \"wsd\""});
  CHECK(lines({"train.steps=3", "train.stop_after=4"}) ==
        Lines{"train.stop_after changes nothing from the last step on (train.steps)"});
  const std::string never =
      "train.min_lr changes nothing without two steps of decay or more (train.lr_schedule, "
      "lr_decay_steps, lr_warmup_steps)";
  CHECK(lines({"train.min_lr=1e-4", "train.lr_schedule=wsd"}) == Lines{never});
  CHECK(lines({"train.min_lr=1e-4", "train.lr_schedule=wsd", "train.lr_decay_steps=2"}).empty());
  CHECK(lines({"train.min_lr=1e-4", "train.lr_schedule=cosine", "train.lr_warmup_steps=100"}) == Lines{never});
  CHECK(lines({"train.min_lr=1e-4", "train.lr_schedule=cosine", "train.lr_warmup_steps=98"}).empty());
  CHECK(lines({"train.reduce_dtype=bf16", "overlap.bucket_bytes=1000"}) ==
        Lines{"train.reduce_dtype, overlap.bucket_bytes change nothing on one rank"});
  CHECK(lines({"train.reduce_dtype=bf16", "overlap.bucket_bytes=1000"}, 2).empty());
  CHECK_FALSE(has_effect("model.router", good("{}", dense), 1));
  CHECK(has_effect("model.router", good("{}", router), 1));
  CHECK(has_effect("model.n_head", good("{}", dense), 1));
  CHECK(lines({"overlap.policy=lancet", "overlap.replan=2"}, 2).empty());
  CHECK(lines({"overlap.policy=lancet", "overlap.replan=2"}, 1).size() == 1);
  // Every condition holds somewhere: no field is without effect in all of these.
  const Config configs[] = {good("{}", {"data.eval=a", "mesh.stage=2", "mesh.tensor=2", "train.dtype=bf16",
                                        "device=cuda", "train.lr_schedule=wsd", "train.lr_decay_steps=9",
                                        "train.on_non_finite=skip", "train.sample_tokens=1"}),
                            good("{}", {"model.capacity_factor=null", "train.optimizer=sgd", "overlap.policy=lancet",
                                        "comm.transport=mirrored", "device=emulated"})};
  for (const Field& field : fields())
    CHECK((has_effect(field.path, configs[0], 8) || has_effect(field.path, configs[1], 8)));
}
