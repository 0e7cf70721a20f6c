// Which parameters the optimizer treats in which way.
#include <map>

#include "steps/models.h"
#include "steps/support.h"

using namespace lancet;
using namespace lancet::test;

TEST_CASE("optimize: weights of products and embeddings decay, layer norms and biases do not") {
  passes::OptimizeOptions options;
  options.weight_decay = 0.25;
  for (const bool fused : {false, true}) {
    const ir::Program backward = of_rank(passes::autodiff(model(1)), {});
    const ir::Program step = passes::optimize(fused ? passes::fuse(backward) : backward, options);
    std::map<std::string, double> decay;
    for (const ir::Instruction& at : step.instructions)
      if (at.attributes.has("weight_decay")) decay[at.label] = at.attributes.real("weight_decay");
    CHECK(decay.size() == 2 + 2 + 2 * 13 + 2 * 12);
    for (const char* name : {"wte.weight", "wpe.weight", "h.0.attn.c_attn.weight", "h.0.attn.c_proj.weight",
                             "h.0.moe.gate.weight", "h.0.moe.experts.c_fc.weight", "h.1.mlp.c_fc.weight"})
      CHECK(decay.at(name) == 0.25);
    for (const char* name : {"ln_f.weight", "ln_f.bias", "h.3.ln_1.weight", "h.3.ln_2.bias", "h.0.attn.c_attn.bias",
                             "h.0.moe.experts.c_proj.bias", "h.1.mlp.c_fc.bias"})
      CHECK(decay.at(name) == 0);
  }
}

TEST_CASE("optimize: the states say what they are, and of which parameter") {
  for (const bool accumulate : {false, true}) {
    const ir::Program step = passes::optimize(of_rank(passes::autodiff(program(moe), accumulate), {}), {});
    std::map<ir::StateKind, int> count;
    for (const ir::Tensor& tensor : step.tensors) {
      if (tensor.kind != ir::TensorKind::state) continue;
      ++count[tensor.state];
      CHECK(std::any_of(step.tensors.begin(), step.tensors.end(), [&](const ir::Tensor& p) {
        return p.kind == ir::TensorKind::parameter && ir::state_name(p.name, tensor.state) == tensor.name;
      }));
    }
    using Kind = ir::StateKind;
    CHECK(count[Kind::first_moment] == 7);
    CHECK(count[Kind::second_moment] == 7);
    CHECK(count[Kind::master] == 4);  // of the weights in bf16
    CHECK(count[Kind::gradient_sum] == (accumulate ? 7 : 0));
    CHECK(count[Kind::other] == 0);
  }
}
