// Logical forward Programs of random MoE models: few sizes, so that axes of one size mean different things.
#pragma once
#include <fmt/format.h>

#include <random>

#include "steps/support.h"

namespace lancet::test {

class RandomModel {
 public:
  explicit RandomModel(std::uint32_t seed) : random_(seed) {}

  // For two ranks, which split the batch and the experts; each has a batch that 2, 4 and 8 parts divide.
  ir::Program make() {
    x_ = append("embedding", {input("tokens"), weight("wte", {vocabulary, width_}), weight("wpe", {sequence_, width_})},
                {}, "wte")[0];
    const int blocks = 1 + below(4);
    const int moe = below(blocks);  // at least one
    for (int i = 0; i < blocks; ++i) {
      const std::string name = fmt::format("h.{}", i);
      const ir::TensorId y = i == moe || below(2) ? mixture(name + ".moe") : dense(name + ".mlp");
      x_ = below(2) ? append("add", {x_, y}, {}, name + ".add")[0] : y;
    }
    const ir::TensorId logits = append("linear", {x_, weight("head", {vocabulary, width_})}, {}, "head")[0];
    const ir::TensorId loss = append("cross_entropy_train", {logits, input("targets")},
                                     {{"vocabulary", vocabulary}, {"total_tokens", tokens()}}, "loss")[0];
    program_.outputs.insert(program_.outputs.begin(), {"loss", loss});
    return program(ir::print(program_));
  }

 private:
  static constexpr std::int64_t vocabulary = 16;

  int below(int n) { return int(random_() % std::uint32_t(n)); }
  std::int64_t one_of(std::initializer_list<std::int64_t> values) { return values.begin()[below(int(values.size()))]; }
  std::int64_t tokens() const { return batch_ * sequence_; }

  std::vector<ir::TensorId> append(std::string_view op, std::vector<ir::TensorId> operands, ir::Attributes attributes,
                                   std::string label) {
    return ops::append(program_, op, std::move(operands), std::move(attributes), ir::Role::forward, std::move(label));
  }
  ir::TensorId input(const char* name) {
    const ir::Sharding of_batch{{ir::Split{{ir::Axis::data, ir::Axis::expert}}, {}}, {}};
    return program_.add_named(ir::TensorKind::input, name, {DType::i32, {batch_, sequence_}}, of_batch);
  }
  ir::TensorId weight(const std::string& name, Shape shape) {
    return program_.add_named(ir::TensorKind::parameter, name + ".weight", {DType::f32, shape});
  }
  ir::TensorId of_experts(const std::string& name, Shape shape) {
    ir::Sharding sharding = ir::Sharding::whole(std::size_t(shape.rank()));
    sharding.dimensions[0] = ir::Split{{ir::Axis::expert}};
    return program_.add_named(ir::TensorKind::parameter, name, {DType::f32, shape}, sharding);
  }

  ir::TensorId dense(const std::string& name) {
    const ir::TensorId hidden = append("linear", {x_, weight(name + ".fc", {inner_, width_})}, {}, name + ".fc")[0];
    const ir::TensorId active = append("gelu", {hidden}, {}, name + ".gelu")[0];
    return append("linear", {active, weight(name + ".proj", {width_, inner_})}, {}, name + ".proj")[0];
  }

  ir::TensorId mixture(const std::string& name) {
    const std::int64_t groups = ranks * one_of({1, 2, 8}), capacity = 1 + below(int(tokens() / groups)),
                       choices = 1 + below(2);
    const ir::Attributes filled{{"tokens", std::min(tokens() * choices, experts_ * groups * capacity)}};
    const ir::TensorId logits =
        append("router", {x_, weight(name + ".gate", {experts_, width_})}, {}, name + ".gate")[0];
    const auto chosen = append("top_k", {logits}, {{"k", choices}}, name + ".gate");
    const ir::TensorId expert = chosen[0], weight_of = chosen[1];
    const bool prioritized = below(3) == 0;
    const auto gate = append(
        prioritized ? "slots_by_priority" : "slots", prioritized ? std::vector{expert, weight_of} : std::vector{expert},
        {{"capacity", capacity}, {"groups", groups}, {"load_groups", groups / ranks}, {"experts", experts_}},
        name + ".gate");
    const ir::TensorId aux = append(
        "aux_loss", {chosen[2], gate[3]},
        {{"load_tokens", tokens() / ranks}, {"choices", choices}, {"total_tokens", tokens()}, {"coefficient", 0.1}},
        name + ".aux")[0];
    program_.add_output("aux." + name, aux);
    ir::TensorId y =
        append("dispatch", {x_, expert, gate[0], gate[2]}, {{"slots", groups * capacity}}, name + ".dispatch")[0];
    y = append("expert_linear",
               {y, of_experts(name + ".fc.weight", {experts_, inner_, width_}),
                of_experts(name + ".fc.bias", {experts_, inner_}), gate[2]},
               filled, name + ".fc")[0];
    y = append("gelu", {y, gate[2]}, filled, name + ".gelu")[0];
    y = append("expert_linear",
               {y, of_experts(name + ".proj.weight", {experts_, width_, inner_}),
                of_experts(name + ".proj.bias", {experts_, width_}), gate[2]},
               filled, name + ".proj")[0];
    return append("combine", {y, expert, gate[0], weight_of, gate[2]}, {{"batch", batch_}}, name + ".combine")[0];
  }

  std::mt19937 random_;
  ir::Program program_;
  ir::TensorId x_;
  static constexpr std::int64_t ranks = 2;
  const std::int64_t batch_ = ranks * one_of({8, 16}), sequence_ = one_of({1, 2, 8}), width_ = one_of({8, 16}),
                     inner_ = one_of({8, 16, 32}), experts_ = one_of({2, 8, 16});
};

}  // namespace lancet::test
