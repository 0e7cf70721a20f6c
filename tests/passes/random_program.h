// Random training steps of the catalogue's dense ops, and random shardings of all their tensors.
#pragma once
#include <fmt/format.h>

#include "steps/support.h"

namespace lancet::test {

// Extents that 2, 4 and 8 ranks divide, and few, so that dimensions of one extent mean different things.
class RandomProgram {
 public:
  explicit RandomProgram(std::uint32_t seed) : random_(seed) {}

  ir::Program make() {
    const ir::TensorId tokens = program_.add_named(ir::TensorKind::input, "tokens", {DType::i32, {batch_, sequence_}});
    const ir::TensorId wte = weight({vocabulary, width_});
    ir::TensorId x = append("embedding", {tokens, wte, weight({sequence_, width_})})[0];
    for (int left = 1 + below(4); left > 0; --left) {
      const ir::TensorId y = layer(x);
      x = below(2) ? append("add", {x, y})[0] : y;
    }
    const ir::TensorId logits = append("linear", {x, below(2) ? wte : weight({vocabulary, width_})})[0];
    const ir::TensorId targets =
        program_.add_named(ir::TensorKind::input, "targets", {DType::i32, {batch_, sequence_}});
    program_.add_output("loss", loss(logits, targets));
    ir::Program step = passes::autodiff(program_);
    require_sound(ops::verify(step));
    return step;
  }

  // Gives every tensor one of the shardings that fit it; sums only to floating point that is not an input.
  void shard(ir::Program& program, const ir::Mesh& mesh) {
    for (ir::Tensor& tensor : program.tensors) {
      do tensor.sharding = any_sharding(tensor, mesh);
      while (!shard_shape(tensor.type.shape, *tensor.sharding, mesh).ok());
    }
  }

 private:
  static constexpr std::int64_t vocabulary = 16;

  int below(int n) { return int(random_() % std::uint32_t(n)); }
  std::int64_t one_of(std::initializer_list<std::int64_t> values) { return values.begin()[below(int(values.size()))]; }

  std::vector<ir::TensorId> append(std::string_view op, std::vector<ir::TensorId> operands,
                                   ir::Attributes attributes = {}) {
    return ops::append(program_, op, std::move(operands), std::move(attributes), ir::Role::forward,
                       fmt::format("at.{}", program_.instructions.size()));
  }
  ir::TensorId weight(const Shape& shape) {
    return program_.add_named(ir::TensorKind::parameter, fmt::format("w{}", weights_++), {DType::f32, shape});
  }

  // Of whole rows of logits, or of blocks of columns.
  ir::TensorId loss(ir::TensorId logits, ir::TensorId targets) {
    const std::int64_t total = batch_ * sequence_;
    if (below(2))
      return append("cross_entropy_train", {logits, targets}, {{"vocabulary", vocabulary}, {"total_tokens", total}})[0];
    const ir::Attributes blocks{{"vocabulary", vocabulary}, {"blocks", one_of({4, 8})}};
    const ir::TensorId stats = append("logit_stats", {logits, targets}, blocks)[0];
    return append("loss_of_stats", {stats, targets}, {{"total_tokens", total}})[0];
  }

  // An op or two from [B,S,D] to [B,S,D].
  ir::TensorId layer(ir::TensorId x) {
    switch (below(3)) {
      case 0:
        return append("layer_norm", {x, weight({width_}), weight({width_})}, {{"eps", 1e-5}})[0];
      case 1: {
        const std::int64_t heads = one_of({2, 4}), group = one_of({1, 2});
        ir::Attributes attributes{{"heads", heads}};
        if (group > 1) attributes.set("group", group);
        const ir::TensorId qkv = linear(x, (group + 2) * width_);
        return linear(append("attention", {qkv}, attributes)[0], width_);
      }
      default:
        return linear(append("gelu", {linear(x, one_of({8, 16}))})[0], width_);
    }
  }
  ir::TensorId linear(ir::TensorId x, std::int64_t out) {
    const ir::TensorId w = weight({out, program_.type(x).shape.back()});
    return below(3) ? append("linear", {x, w, weight({out})})[0] : append("linear", {x, w})[0];
  }

  ir::Sharding any_sharding(const ir::Tensor& tensor, const ir::Mesh& mesh) {
    ir::Sharding sharding = ir::Sharding::whole(std::size_t(tensor.type.shape.rank()));
    std::vector<ir::Axis> axes(ir::all_axes.begin(), ir::all_axes.end());
    std::shuffle(axes.begin(), axes.end(), random_);
    for (const ir::Axis axis : axes) {
      if (mesh[axis] == 1) continue;
      const int where = below(tensor.type.shape.rank() + 2);
      if (where < tensor.type.shape.rank())
        sharding.dimensions[std::size_t(where)].axes.push_back(axis);
      else if (where == tensor.type.shape.rank() && tensor.kind == ir::TensorKind::value)
        sharding.partial.add(axis);
    }
    for (ir::Split& split : sharding.dimensions)
      if (!split.axes.empty())
        split.blocks =
            std::array{ir::Blocks(1), ir::Blocks(2), ir::Blocks(3), ir::Blocks::of({2, 1, 1})}[std::size_t(below(4))];
    return sharding;
  }

  std::minstd_rand random_;
  std::int64_t batch_ = one_of({2, 4, 8}), sequence_ = one_of({4, 8}), width_ = one_of({8, 16});
  int weights_ = 0;
  ir::Program program_;
};

}  // namespace lancet::test
