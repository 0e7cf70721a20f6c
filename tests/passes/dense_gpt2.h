// A dense GPT-2 on one big device, annotated for data and tensor parallelism (Megatron-LM: the columns of the first
// product of each pair, the rows of the second).
#pragma once
#include <fmt/format.h>

#include "steps/support.h"

namespace lancet::test {

class DenseGpt2 {
 public:
  static constexpr std::int64_t batch = 8, sequence = 4, width = 16, heads = 4, vocabulary = 12, positions = 6;

  // rows: of the token embedding, those beyond the vocabulary are padding.
  explicit DenseGpt2(std::int64_t vocabulary_size = vocabulary, std::int64_t rows = vocabulary + 4)
      : vocabulary_size_(vocabulary_size), rows_(rows) {}

  // The training step, its annotations spread.
  // sequence_parallel: between the pairs of products, tensor splits the sequence. split_weights: data splits, too, the
  // weights that tensor splits. vocabulary_blocks: if not 0, tensor splits the vocabulary, and the loss is that of so
  // many blocks of columns.
  ir::Program make(int layers, const ir::Mesh& mesh, bool accumulate = false, bool sequence_parallel = false,
                   bool split_weights = false, std::int64_t vocabulary_blocks = 0) {
    sequence_parallel_ = sequence_parallel;
    split_weights_ = split_weights;
    const ir::TensorId tokens = input("tokens"), wte = weight("wte", {rows_, width});
    if (vocabulary_blocks) program_[wte].sharding = ir::Sharding{{split_over({ir::Axis::tensor}), {}}, {}};
    x_ = append("embedding", {tokens, wte, weight("wpe", {positions, width})}, {}, "wte")[0];
    for (int i = 0; i < layers; ++i) block(fmt::format("h.{}", i));
    const ir::TensorId logits = append("linear", {norm("ln_f"), wte}, {}, "lm_head")[0];
    program_.add_output("loss", loss(logits, input("targets"), vocabulary_blocks));
    auto step = passes::shard(passes::autodiff(program_, accumulate), mesh);
    if (!step.ok()) FAIL(step.error().message);
    require_sound(ops::verify(*step));
    return *step;
  }

 private:
  static ir::Split split_over(std::vector<ir::Axis> axes, std::int64_t blocks = 1) { return {std::move(axes), blocks}; }
  const ir::Split batch_split = split_over({ir::Axis::data, ir::Axis::expert});

  std::vector<ir::TensorId> append(std::string_view op, std::vector<ir::TensorId> operands, ir::Attributes attributes,
                                   std::string label) {
    return ops::append(program_, op, std::move(operands), std::move(attributes), ir::Role::forward, std::move(label));
  }
  ir::TensorId input(const char* name) {
    const ir::TensorId id = program_.add_named(ir::TensorKind::input, name, {DType::i32, {batch, sequence}});
    program_[id].sharding = ir::Sharding{{batch_split, {}}, {}};
    return id;
  }
  ir::TensorId weight(const std::string& name, const Shape& shape) {
    return program_.add_named(ir::TensorKind::parameter, name, {DType::f32, shape});
  }

  ir::TensorId loss(ir::TensorId logits, ir::TensorId targets, std::int64_t blocks) {
    constexpr std::int64_t total = batch * sequence;
    if (!blocks)
      return append("cross_entropy_train", {logits, targets},
                    {{"vocabulary", vocabulary_size_}, {"total_tokens", total}}, "lm_head.loss")[0];
    const ir::TensorId stats = append("logit_stats", {logits, targets},
                                      {{"vocabulary", vocabulary_size_}, {"blocks", blocks}}, "lm_head.stats")[0];
    return append("loss_of_stats", {stats, targets}, {{"total_tokens", total}}, "lm_head.loss")[0];
  }

  ir::TensorId norm(const std::string& name) {
    const ir::TensorId gamma = weight(name + ".weight", {width}), beta = weight(name + ".bias", {width});
    const bool first = !delta_.valid();
    const auto results = first ? append("layer_norm", {x_, gamma, beta}, {{"eps", 1e-5}}, name)
                               : append("add_layer_norm", {x_, delta_, gamma, beta}, {{"eps", 1e-5}}, name);
    if (sequence_parallel_) {
      for (const ir::TensorId id : results) split_sequence(id);
      if (!first) split_sequence(delta_);
    }
    if (!first) x_ = results[0];
    return results[first ? 0 : 1];
  }

  void split_sequence(ir::TensorId id) {
    program_[id].sharding = ir::Sharding{{batch_split, split_over({ir::Axis::tensor}), {}}, {}};
  }

  // A product whose weight is split along dimension `split`, in blocks.
  ir::TensorId linear(const std::string& name, ir::TensorId x, std::int64_t out, int split, std::int64_t blocks = 1) {
    const ir::TensorId w = weight(name + ".weight", {out, program_.type(x).shape.back()});
    program_[w].sharding = ir::Sharding::whole(2);
    program_[w].sharding->dimensions[std::size_t(split)] = split_over({ir::Axis::tensor}, blocks);
    if (split_weights_) program_[w].sharding->dimensions[std::size_t(1 - split)] = split_over({ir::Axis::data});
    const ir::TensorId y = append("linear", {x, w, weight(name + ".bias", {out})}, {}, name)[0];
    if (sequence_parallel_ && split == 0) {
      program_[y].sharding = ir::Sharding{{batch_split, {}, split_over({ir::Axis::tensor}, blocks)}, {}};
    }
    return y;
  }

  void block(const std::string& name) {
    const ir::TensorId qkv = linear(name + ".attn.c_attn", norm(name + ".ln_1"), 3 * width, 0, 3);
    const ir::TensorId mixed = append("attention", {qkv}, {{"heads", heads}}, name + ".attn")[0];
    delta_ = linear(name + ".attn.c_proj", mixed, width, 1);
    const ir::TensorId hidden = linear(name + ".mlp.c_fc", norm(name + ".ln_2"), 4 * width, 0);
    delta_ = linear(name + ".mlp.c_proj", append("gelu", {hidden}, {}, name + ".mlp.gelu")[0], width, 1);
  }

  const std::int64_t vocabulary_size_, rows_;
  ir::Program program_;
  ir::TensorId x_{}, delta_{};
  bool sequence_parallel_ = false, split_weights_ = false;
};

}  // namespace lancet::test
