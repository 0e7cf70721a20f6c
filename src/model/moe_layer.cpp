#include "builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "lancet/model/transformer.h"

namespace lancet::model {

std::int64_t capacity(double capacity_factor, std::int64_t tokens, std::int64_t experts, std::int64_t choices) {
  // The small subtraction prevents that 1.25 * 1024 / 4, which is exactly 320, is rounded up to 321.
  const double exact = capacity_factor * double(choices * tokens) / double(experts);
  return static_cast<std::int64_t>(std::clamp(std::ceil(exact - 1e-9 * exact), 1.0, double(tokens)));
}

std::int64_t choices_of(const config::Model& model, std::int64_t tokens, std::int64_t slots) {
  return model.experts_choose() ? slots : tokens * model.num_experts_per_tok;
}

namespace {

// The weights of the experts' two products and their biases, where the family has them.
struct Experts {
  TensorId w1, b1, w2, b2;
};

// The last number of a repeat that the program uses.
std::int32_t last_repeat(const ir::Program& program) {
  std::int32_t last = 0;
  for (const ir::Instruction& at : program.instructions) last = std::max(last, at.repeated);
  return last;
}

class MoeLayer {
 public:
  MoeLayer(Builder& builder, std::int64_t block)
      : b_(builder), block_(block), layer_(fmt::format("h.{}", block)), name_(layer_ + ".moe") {
    const BuildOptions& options = b_.options();
    const std::int64_t choices = model_.num_experts_per_tok;
    const bool keeps_all = (b_.gives_logits() || options.keep_all) && !model_.experts_choose();
    groups_ = keeps_all ? options.loads : options.groups;
    const std::int64_t tokens = b_.tokens() / groups_;
    capacity_ = keeps_all ? tokens : capacity(model_.kept_factor(), tokens, experts_, choices);
    slots_ = groups_ * capacity_;
    // Each run of tokens that will be on one rank has windows of its own.
    if (!keeps_all && !model_.capacity_factor)
      slots_ = options.loads * capacity(model_.dropless_imbalance, b_.tokens() / options.loads, experts_, choices);
  }

  TensorId build(TensorId x) {
    const Route all = route(b_, block_, x, groups_, capacity_);
    const Experts weights = experts();
    const TensorId routed = slots_ == groups_ * capacity_ ? through(x, all, weights) : in_windows(x, all, weights);
    return model_.shared_inner() > 0 ? add_shared(x, routed) : routed;
  }

 private:
  // The first window of the slots (ops/parts/window) is an MoE layer as any other. Further ones, where an expert has
  // more choices than a window has slots, take a round each, in the body of a repeat. They add onto zeros and not onto
  // what the first window makes, so that the repeat need not wait for that: its stream has messages of other parts.
  TensorId in_windows(TensorId x, const Route& all, const Experts& weights) {
    const ops::Attributes window{{"slots", slots_}};
    const auto first = b_.emit("first_window", {all.expert, all.slot, all.filled}, window, name_ + ".gate");
    b_.program.add_output(ir::output_name(ir::OutputKind::rounds, layer_), first[2]);
    const TensorId y = through(x, {all.expert, all.weight, first[0], first[1]}, weights);
    const TensorId none = b_.emit("zeros", {x}, {}, name_ + ".rounds")[0];
    b_.repeated = last_repeat(b_.program) + 1;
    const TensorId round = b_.emit("round", {first[2]}, {}, name_ + ".rounds")[0];
    const auto next = b_.emit("window", {all.slot, all.filled, round}, window, name_ + ".rounds");
    const TensorId more = through(x, {all.expert, all.weight, next[0], next[1]}, weights);
    const TensorId sum = b_.emit("add_to", {none, more}, {}, name_ + ".rounds")[0];
    b_.repeated = 0;
    return b_.emit("add_to", {y, sum}, {}, name_ + ".rounds")[0];
  }

  // To the experts and back: [B,S,D] -> [B,S,D].
  TensorId through(TensorId x, const Route& to, const Experts& weights) {
    const TensorId sent = b_.emit("dispatch", {x, to.expert, to.slot, to.filled}, {{"slots", slots_}},
                                  name_ + ".dispatch")[0];  // [E,C,D]
    return b_.emit("combine", {apply(weights, sent, to.filled), to.expert, to.slot, to.weight, to.filled},
                   {{"batch", b_.options().batch}}, name_ + ".combine")[0];
  }

  // Adds the result of the shared experts, which read x and no route, so that they can run beside the all-to-alls.
  TensorId add_shared(TensorId x, TensorId routed) {
    const std::string name = name_ + ".shared_experts";
    TensorId y = b_.mlp(name, x, model_.shared_inner());
    if (b_.family().gates_shared_expert) {
      const std::string gate = name + ".gate";
      const TensorId weight = b_.weight(gate + ".weight", {1, model_.n_embd}, {whole, whole}, b_.deviation);
      const TensorId of_token = b_.emit("linear", {x, weight}, b_.product_of(b_.tokens()), gate)[0];  // [B,S,1]
      y = b_.emit("sigmoid_gate", {y, of_token}, {}, gate)[0];
    }
    return b_.emit("add", {routed, y}, {}, name)[0];
  }

  Experts experts() {
    const std::string name = name_ + ".experts";
    const std::int64_t d = model_.n_embd, f = model_.expert_inner();
    Experts made;
    const bool biases = b_.family().biases;
    made.w1 = b_.weight(name + ".c_fc.weight", {experts_, b_.widened(f), d}, {over_experts, over_tensor, whole},
                        b_.deviation);
    if (biases) made.b1 = b_.constant(name + ".c_fc.bias", {experts_, b_.widened(f)}, {over_experts, over_tensor}, 0);
    made.w2 =
        b_.weight(name + ".c_proj.weight", {experts_, d, f}, {over_experts, whole, over_tensor}, b_.residual_deviation);
    if (biases) made.b2 = b_.constant(name + ".c_proj.bias", {experts_, d}, {over_experts, whole}, 0);
    return made;
  }

  // [E,C,D] -> [E,C,D]
  TensorId apply(const Experts& to, TensorId sent, TensorId filled) {
    const std::string name = name_ + ".experts";
    const std::int64_t slots = experts_ * slots_;
    const ops::Attributes rows{{"tokens", std::min(choices_of(model_, b_.tokens(), slots), slots)}};  // that they get
    ops::Attributes product = b_.product_of(b_.tokens());
    product.set("tokens", rows.integer("tokens"));
    const auto through = [&](TensorId x, TensorId weight, TensorId bias, const std::string& label) {
      if (!bias.valid()) return b_.emit("expert_product", {x, weight, filled}, product, label)[0];
      return b_.emit("expert_linear", {x, weight, bias, filled}, product, label)[0];
    };
    const std::string active = b_.activation();
    const TensorId hidden = through(sent, to.w1, to.b1, name + ".c_fc");
    return through(b_.emit(active, {hidden, filled}, rows, name + "." + active)[0], to.w2, to.b2, name + ".c_proj");
  }

  Builder& b_;
  const config::Model& model_ = b_.model();
  const std::int64_t block_;
  const std::string layer_, name_;
  const std::int64_t experts_ = model_.num_local_experts.value();
  std::int64_t groups_ = 1;    // of neighbouring sequences; capacity is counted in each
  std::int64_t capacity_ = 1;  // slots of an expert for a group
  std::int64_t slots_ = 1;     // of an expert's buffer
};

}  // namespace

TensorId moe_layer(Builder& builder, std::int64_t block, TensorId x) { return MoeLayer(builder, block).build(x); }

}  // namespace lancet::model
