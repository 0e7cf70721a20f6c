// A mix: a small training run as the values of fields over one base, and the mesh on which it resumes after an
// interruption. What a mix is drawn from is all here.
#pragma once
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/fields.h"
#include "declared_costs.h"
#include "lancet/config/config.h"
#include "lancet/planner/from_config.h"
#include "lancet/planner/planner.h"
#include "lancet/schedule/plan_memory.h"
#include "routers.h"

namespace lancet::test {

// The family's name of a field that has this name in GPT-2's; "" if it has no such field.
inline std::string name_in(const config::Family& family, std::string_view field) {
  const std::string path = fmt::format("model.{}", field);
  if (config::find_field(path, family)) return std::string(field);
  const std::string other = config::in_names_of(family, path);
  return other == path ? "" : std::string(config::key_of(other));
}

// Three blocks, of which 0 and 2 are MoE layers of GPT-2. Adam divides by no less than train.adam_eps, since it would
// else make steps of full length of gradients that are rounding alone.
inline std::string base_of_mixes(std::span<const std::string> fields) {
  constexpr std::string_view prefix = "model.model_type=";
  const config::Family* family = &config::families::gpt2;
  for (const std::string_view field : fields)
    if (field.starts_with(prefix)) family = config::find_family(field.substr(prefix.size()));
  std::string model = fmt::format(R"("model_type": "{}")", family->name);
  const std::pair<std::string_view, std::string_view> values[] = {{"n_layer", "3"},
                                                                  {"n_head", "4"},
                                                                  {"n_embd", "16"},
                                                                  {"n_positions", "16"},
                                                                  {"vocab_size", "61"},
                                                                  {"vocab_pad_multiple", "8"},
                                                                  {"initializer_range", "0.1"},
                                                                  {"num_local_experts", "4"},
                                                                  {"router_group_size", "1"},
                                                                  {"router_aux_loss_coef", "0.1"},
                                                                  {"router_aux_loss_scope", "\"global\""}};
  for (const auto& [field, value] : values)
    if (const auto name = name_in(*family, field); !name.empty()) model += fmt::format(R"(, "{}": {})", name, value);
  return fmt::format(R"({{
  "model": {{{}}},
  "data": {{"synthetic": true}},
  "train": {{"steps": 3, "seq_len": 8, "micro_batch_size": 2, "optimizer": "sgd", "lr": 0.1, "adam_eps": 0.1,
            "stop_after": 1, "save_interval": 1000, "save_buffer_mb": 8}},
  "mesh": {{"data": 1, "expert": 1}},
  "overlap": {{"memory_factor": 10}},
  "log": {{"interval": 1000, "peak_tflops": 1}},
  "threads": 1
}})",
                     model);
}

struct Mix {
  std::vector<std::string> fields;  // "train.zero=1"
  std::vector<std::string> then;    // those of the other mesh; empty: the run resumes on its own mesh alone
  friend bool operator==(const Mix&, const Mix&) = default;

  std::string command() const {
    std::string text = "mixes";
    for (const std::string& field : fields) text += fmt::format(" '{}'", field);
    if (!then.empty()) text += " --then";
    for (const std::string& field : then) text += fmt::format(" '{}'", field);
    return text;
  }
};

// One seed of three has a fast network on a fast device; one a network beside which rings of products pay, one a slow
// one, on a slow device whose copies take no time.
struct MixCosts final : DeclaredCosts {
  bool is_slow;
  explicit MixCosts(const config::Config& config) : is_slow(config.train.seed % 3 > 0) {
    if (!is_slow) return;
    elements_per_ms = 4000;
    network_mb_per_s = config.train.seed % 3 == 1 ? 20 : 0.7;
    latency_ms = 0.001;
  }
  std::optional<double> compute_ms(std::string_view key) const override {
    for (const std::string_view copy : {"take_window(", "join_windows(", "sum(", "place_columns(", "copy("})
      if (is_slow && key.starts_with(copy)) return 0.001;
    return DeclaredCosts::compute_ms(key);
  }
  double all_reduce_ms(double bytes, ir::Axes group = {}) const override {
    return is_slow ? 0.001 : DeclaredCosts::all_reduce_ms(bytes, group);
  }
  double launch_ms() const override { return is_slow ? 0 : DeclaredCosts::launch_ms(); }
};

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) { mix_.fields.push_back(fmt::format("train.seed={}", seed)); }

  Mix mix() {
    mesh();
    model();
    router();
    train();
    overlap();
    if (one_in(8)) limit_memory();
    if (one_in(2)) elsewhere();
    return mix_;
  }

 private:
  struct Sizes {
    int stage = 1, data = 1, expert = 1, tensor = 1;
    int batch() const { return data * expert; }
    int ranks() const { return stage * batch() * tensor; }
  };

  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[random_() % values.size()];
  }
  bool one_in(unsigned n) { return random_() % n == 0; }
  // Fields of the model have GPT-2's names here; those that the family lacks are left out.
  template <class T>
  void set(std::string_view field, const T& value) {
    constexpr std::string_view model = "model.";
    std::string name(field);
    if (field.starts_with(model)) {
      const std::string of_family = name_in(*family_, field.substr(model.size()));
      if (of_family.empty()) return;
      name = fmt::format("{}{}", model, of_family);
    }
    (is_elsewhere_ ? mix_.then : mix_.fields).push_back(fmt::format("{}={}", name, value));
  }

  // Two to eight ranks; each axis divides what it splits.
  Sizes drawn_mesh() {
    for (;;) {
      const Sizes sizes{.stage = one_of({1, 1, 1, 2, 3}),
                        .data = one_of({1, 1, 2, 2, 3, 4}),
                        .expert = is_dense_ ? 1 : one_of({1, 2, 2, 3, 4, 8}),
                        .tensor = one_of({1, 1, 2, 2, 3, 4})};
      const bool divides = key_heads_ % sizes.tensor == 0 && experts_ % sizes.expert == 0 && sizes.stage <= blocks_;
      if (divides && sizes.ranks() > 1 && sizes.ranks() <= 8) return sizes;
    }
  }

  void set_mesh(const Sizes& sizes) {
    if (sizes.stage > 1) set("mesh.stage", sizes.stage);
    set("mesh.data", sizes.data);
    set("mesh.expert", sizes.expert);
    if (sizes.tensor > 1) set("mesh.tensor", sizes.tensor);
  }

  void mesh() {
    is_dense_ = one_in(16);
    heads_ = one_of({4, 4, 6});
    experts_ = one_of({2, 4, 4, 6, 8});
    blocks_ = one_of({2, 3, 3, 4});
    key_heads_ = heads_;
    if (one_in(2)) {
      std::vector<const config::Family*> others;
      for (const config::Family* family : config::families_known())
        if (family->name != "gpt2" && family->has("num_experts_per_tok") != is_dense_) others.push_back(family);
      family_ = others[random_() % others.size()];
      key_heads_ /= one_of({1, 2, 2});
    }
    here_ = drawn_mesh();
    set_mesh(here_);
    if (!is_gpt2()) set("model.model_type", family_->name);
    if (is_dense_) set("model.moe_layer_freq", 0);
    set("model.n_layer", blocks_);
    set("model.n_head", heads_);
    set("model.num_local_experts", experts_);
  }

  void model() {
    set("model.n_embd", heads_ * one_of({4, 8}));
    set("model.vocab_size", one_of({61, 64, 67, 131}));
    set("model.vocab_pad_multiple", one_of({1, 8, 64}));
    if (!is_gpt2()) {
      set("model.num_key_value_heads", key_heads_);
      set("model.rope_theta", one_of({100, 10'000}));
      set("model.tie_word_embeddings", one_in(2));
      if (one_in(2)) set("model.head_dim", one_of({4, 6}));
      if (one_in(2)) set("model.intermediate_size", one_of({12, 24}));
      if (one_in(4)) set("model.rope_scaling", one_of({linear, yarn, llama3}));
      for (const char* biases : {"model.qkv_bias", "model.attention_bias"}) set(biases, one_in(2));
      if (one_in(2)) set("model.clip_qkv", one_of({0.05, 1.0}));
    }
    if (is_dense_) return;
    const int frequency = one_of({1, 1, 2});
    set("model.moe_layer_freq", frequency);
    if (one_in(3) && frequency == 1) set("model.first_k_dense_replace", 1);
    if (one_in(3)) set("model.n_shared_experts", one_of({1, 2}));
    if (one_in(3)) set("model.moe_intermediate_size", one_of({12, 24}));
    if (one_in(3)) set("model.shared_expert_intermediate_size", one_of({12, 24}));
    if (one_in(3)) set("model.mlp_only_layers", "[0]");
  }

  void router() {
    if (is_dense_) return;
    config::Model model;
    one_of_routes().set(model);
    if (model.router == config::Router::top_k || model.router == config::Router::sigmoid ||
        model.router == config::Router::batch_prioritized)
      model.num_experts_per_tok = std::min(one_of({1, 2, 2, 3}), model.router_groups > 1 ? experts_ / 2 : experts_);
    if (family_->name == "mixtral" && (model.experts_choose() || !model.has_scores())) {
      model = {};  // its weights always sum to 1
      model.router = config::Router::top_k;
      model.num_experts_per_tok = 2;
    }
    set("model.router", name(model.router));
    set("model.num_experts_per_tok", model.num_experts_per_tok);
    set("model.norm_topk_prob", model.norm_topk_prob);
    set("model.router_jitter_noise", model.router_jitter_noise);
    if (model.router == config::Router::gshard) {
      set("model.router_second_expert", one_of({"random", "always"}));
      set("model.router_skipped_slots", name(model.router_skipped_slots));
      set("model.router_aux_loss_form", name(model.router_aux_loss_form));
    }
    if (model.router_groups > 1) {
      set("model.router_groups", model.router_groups);
      set("model.router_topk_groups", *model.router_topk_groups);
      set("model.routed_scaling_factor", model.routed_scaling_factor);
      set("model.router_bias_update_rate", model.router_bias_update_rate);
    }
    if (model.experts_choose())
      set("model.capacity_factor", one_of({1, 2}));
    else if (one_in(3))
      set("model.capacity_factor", "null"), set("model.dropless_imbalance", one_of({1, 2}));
    else
      set("model.capacity_factor", one_of({0.5, 0.75, 1.0, 2.0}));
    if (model.has_scores()) {
      set("model.router_aux_loss_coef", one_of({0.0, 0.01, 0.1, 1.0}));
      set("model.router_z_loss_coef", one_of({0.0, 0.0, 0.01, 0.1}));
    }
  }

  static constexpr std::string_view linear = R"({"rope_type": "linear", "factor": 2})";
  static constexpr std::string_view yarn = R"({"rope_type": "yarn", "factor": 2})";
  static constexpr std::string_view llama3 =
      R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8})";

  const Route& one_of_routes() { return routes[random_() % routes.size()]; }

  void train() {
    rows_ = here_.batch() * (here_.batch() > 2 ? one_of({1, 2, 2}) : one_of({2, 4}));
    group_ = rows_ / here_.batch() > 1 ? one_of({1, 2}) : 1;
    set("train.micro_batch_size", rows_ / here_.batch());
    if (!is_dense_) {
      set("model.router_group_size", group_);
      // On one rank, the loss of each rank is the loss of each of its groups.
      scope_ = one_of({"global", "group", group_ == rows_ / here_.batch() ? "rank" : "global"});
      set("model.router_aux_loss_scope", scope_);
    }
    set("train.gradient_accumulation_steps", one_in(50) ? 17 : one_of({1, 1, 2, 2, 3, 4}));
    sequence_ = one_of({8, 12, 16});
    set("train.seq_len", sequence_);
    if (one_in(8)) {
      set("train.dtype", "bf16");
      set("train.master_weights", one_in(2));
    } else if (one_in(16)) {
      set("train.reduce_dtype", "bf16");
    }
    if (one_in(2)) {
      set("train.optimizer", "adamw");
      set("train.lr", 0.02);
      set("train.weight_decay", one_of({0.0, 0.1}));
    }
    set("train.clip_grad", one_of({0.0, 0.0, 0.25, 100.0}));
    if (one_in(4)) set("train.on_non_finite", "skip");
    if (one_in(4)) set("train.lr_schedule", "cosine"), set("train.lr_warmup_steps", 2);
    if (one_in(4)) set("train.stop_after", 2);
    way(here_);
  }

  // What a mesh leaves open: how it holds and cuts what it trains.
  void way(const Sizes& sizes) {
    set("train.zero", one_in(2) ? 1 : 0);
    if (sizes.tensor > 1 && sequence_ % sizes.tensor == 0) set("train.sequence_parallel", one_in(2));
    set("overlap.bucket_bytes", one_of({1000, 10'000, 25 << 20}));
    if (sizes.stage == 1) return;
    const bool two_runs = blocks_ >= 2 * sizes.stage;
    const std::string schedule = one_of({"1f1b", "zero_bubble", "searched", two_runs ? "interleaved" : "searched"});
    set("train.pipeline_schedule", schedule);
    if (sizes.stage == 2 && schedule != "interleaved" && one_in(3)) {
      const int last = one_of({0, 1});
      set("mesh.stage_blocks", fmt::format("[{},{}]", blocks_ - last, last));
    }
  }

  void overlap() {
    const auto policies = planner::policies();
    const std::string policy(one_in(3) ? "lancet" : policies[random_() % policies.size()].name);
    set("overlap.policy", policy);
    const int sequences = rows_ / here_.batch();
    if (policy != "sequential" && (sequences > 1 || policy == "tutel") && one_in(2))
      set("overlap.parts", policy == "tutel" ? one_of({2, 4}) : std::min(sequences, one_of({2, 4})));
    replans_ = policy != "sequential" && one_in(6);
    if (replans_) set("overlap.replan", 1);
    if (policy == "lancet" && one_in(4)) set("overlap.across_steps", false);
  }

  // Longer sequences, since a limit counts in MB, and one that leaves half of the arena at most.
  void limit_memory() {
    sequence_ = 48;
    for (const char* field : {"model.n_positions", "train.seq_len"}) set(field, sequence_);
    const auto config = config::parse(base_of_mixes(mix_.fields), "mixes", mix_.fields);
    if (!config.ok()) return;
    const MixCosts costs(*config);
    const auto plans = planner::plan_stages({*config, here_.ranks()}, {.costs = &costs});
    if (!plans.ok()) return;
    std::int64_t limit = 0;
    for (const ir::Plan& plan : *plans) limit = std::max(limit, schedule::plan_bytes(plan) - plan.arena_bytes * 2 / 5);
    has_limit_ = true;
    set("train.memory_limit_mb", limit / 1'000'000 + 1);
  }

  // The same step on another mesh.
  void elsewhere() {
    Sizes there;
    do {
      there = one_in(6) ? Sizes{} : drawn_mesh();
    } while (rows_ % there.batch() != 0 || rows_ / there.batch() % group_ != 0 ||
             (std::string_view(scope_) == "rank" && there.batch() != here_.batch()));
    is_elsewhere_ = true;
    set("mesh.stage", there.stage);
    if (here_.stage > 1) set("mesh.stage_blocks", "[]");
    set("mesh.tensor", there.tensor);
    set("mesh.data", there.data);
    set("mesh.expert", there.expert);
    set("train.micro_batch_size", rows_ / there.batch());
    set("train.sequence_parallel", false);
    set("overlap.policy", one_in(2) ? "sequential" : "lancet");
    set("overlap.parts", 0);
    if (has_limit_) set("train.memory_limit_mb", 0);
    if (replans_) set("overlap.replan", 0);
    way(there);
  }

  std::mt19937_64 random_;
  Mix mix_;
  const config::Family* family_ = &config::families::gpt2;
  bool is_gpt2() const { return family_ == &config::families::gpt2; }
  bool is_dense_ = false, has_limit_ = false, replans_ = false, is_elsewhere_ = false;
  int heads_ = 4, key_heads_ = 4, experts_ = 4, blocks_ = 3, rows_ = 2, group_ = 1, sequence_ = 8;
  const char* scope_ = "global";
  Sizes here_;
};

}  // namespace lancet::test
