// The passes on small programs, compared as text (tests/golden).
#include "golden/golden.h"
#include "steps/models.h"
#include "steps/support.h"

using namespace lancet;
using namespace lancet::test;

namespace {

passes::OptimizeOptions adamw() {
  passes::OptimizeOptions o;
  o.beta2 = 0.95;
  o.weight_decay = 0.1;
  o.clip_grad = 1;
  o.mesh = ir::of_experts(2);
  return o;
}

passes::OptimizeOptions sgd() {
  passes::OptimizeOptions o;
  o.kind = passes::OptimizeOptions::Kind::sgd;
  o.momentum = 0.5;
  return o;
}

}  // namespace

TEST_CASE("autodiff: a tied weight's gradients are added in one tensor") {
  require_golden("autodiff_tied.ir", text_of(passes::autodiff(program(tied))));
}

TEST_CASE("autodiff: a tied weight, accumulated over micro batches") {
  require_golden("autodiff_tied_accumulate.ir", text_of(passes::autodiff(program(tied), true)));
}

TEST_CASE("autodiff: an MoE layer") { require_golden("autodiff_moe.ir", text_of(passes::autodiff(program(moe)))); }

TEST_CASE("sync: gradients in small buckets on two ranks") {
  require_golden("sync_moe.ir", text_of(passes::sync(of_rank(passes::autodiff(program(moe)), ir::of_experts(2)),
                                                     ir::of_experts(2), 200)));
}

TEST_CASE("sync: one bucket that never fills") {
  require_golden(
      "sync_moe_one_bucket.ir",
      text_of(passes::sync(of_rank(passes::autodiff(program(moe)), ir::of_experts(2)), ir::of_experts(2), 1 << 30)));
}

TEST_CASE("sync: a micro batch reduces only its reported metrics") {
  require_golden("sync_micro_batch.ir",
                 text_of(passes::sync(of_rank(passes::autodiff(tied_batch(4), true), ir::of_experts(2)),
                                      ir::of_experts(2), 1, false)));
}

TEST_CASE("optimize: AdamW with master weights for bf16 weights") {
  require_golden("optimize_adamw_moe.ir",
                 text_of(passes::optimize(passes::sync(of_rank(passes::autodiff(program(moe)), ir::of_experts(2)),
                                                       ir::of_experts(2), 1 << 30),
                                          adamw())));
}

TEST_CASE("optimize: SGD") {
  require_golden("optimize_sgd_tied.ir", text_of(passes::optimize(passes::autodiff(program(tied)), sgd())));
}

TEST_CASE("optimize: accumulated gradients are zeroed after their use") {
  require_golden("optimize_accumulate.ir", text_of(passes::optimize(passes::autodiff(program(tied), true), sgd())));
}

TEST_CASE("optimize: gradients stay outputs on request, except those that are zeroed") {
  passes::OptimizeOptions o = sgd();
  o.keep_gradients = true;
  const ir::Program kept = passes::optimize(passes::autodiff(program(tied)), o);
  REQUIRE(kept.output("grad.wte").valid());
  REQUIRE(kept.output("grad.wpe").valid());
  const ir::Program zeroed = passes::optimize(passes::autodiff(program(tied), true), o);
  require_sound(ops::verify(zeroed));
  REQUIRE_FALSE(zeroed.output("grad.wte").valid());
}

TEST_CASE("passes do not change programs without work for them") {
  const ir::Program forward = program(moe), alone = of_rank(passes::autodiff(forward), {});
  REQUIRE(ir::print(passes::sync(alone, {}, 1)) == ir::print(alone));            // one rank
  REQUIRE(ir::print(passes::optimize(forward, adamw())) == ir::print(forward));  // no gradients
  const std::string no_loss =
      "input @x : f32[2,3,4]\nparameter @w : f32[5,4]\n%0 : f32[2,3,5] = linear(@x, @w)  # compute forward\noutput y = "
      "%0\n";
  REQUIRE(ir::print(passes::autodiff(program(no_loss))) == ir::print(program(no_loss)));
  REQUIRE(ir::print(passes::sync(program(no_loss), ir::of_experts(4), 1)) == ir::print(program(no_loss)));
  // Sums that are reduced already are not reduced again.
  const ir::Program once =
      passes::sync(of_rank(passes::autodiff(forward), ir::of_experts(2)), ir::of_experts(2), 1, false);
  REQUIRE(ir::print(passes::sync(once, ir::of_experts(2), 1, false)) == ir::print(once));
}

TEST_CASE("passes give the same text twice, also for a program that was read from its text") {
  const ir::Program forward = program(moe);
  auto step = [&](const ir::Program& p) {
    const ir::Program backward = of_rank(passes::autodiff(p), ir::of_experts(2));
    return ir::print(passes::optimize(passes::sync(backward, ir::of_experts(2), 200), adamw()));
  };
  const std::string first = step(forward);
  REQUIRE(step(forward) == first);
  const ir::Program backward = of_rank(passes::autodiff(forward), ir::of_experts(2)),
                    read = program(ir::print(backward));
  auto rest = [&](const ir::Program& p) {
    return ir::print(passes::optimize(passes::sync(p, ir::of_experts(2), 200), adamw()));
  };
  REQUIRE(rest(backward) == first);
  REQUIRE(rest(read) == first);
  const ir::Program accumulated = of_rank(passes::autodiff(forward, true), ir::of_experts(2));
  REQUIRE(rest(program(ir::print(accumulated))) == rest(accumulated));
}
