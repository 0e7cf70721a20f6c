// balance_bias(&bias f32[E], counts f32[E], schedule) {rate}: the update of a bias that balances the load of the
// experts (Wang et al., Auxiliary-Loss-Free Load Balancing, algorithm 1), in place: bias_e += rate * sign(mean - c_e),
// where c_e counts how often the tokens of the step chose expert e, and the mean is over the experts. schedule as in
// adamw: if the gradient's factor is NaN, nothing is written. Its other numbers have no influence.
#include "lancet/ops/schedule_layout.h"
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Status check_schedule(const OpInput& in, Types&) {
  const std::int64_t numbers = in.operands[2].shape[0];
  if (numbers != schedule::plain && numbers != schedule::clipped)
    return expected("a schedule f32[4] or, clipped, f32[5]");
  return {};
}

const OpDef table[] = {
    {.name = "balance_bias",
     .forms = {{"&bias:f32[e] counts:f32[e] schedule:f32[n] ->"}},
     .check = check_schedule,
     .samples = {of("e=4 n=4 counts=positive schedule=positive", {{"rate", 0.25}}),
                 of("e=40 n=5 counts=positive schedule=positive", {{"rate", 0.001}}),
                 of("e=3 n=4 counts=zero schedule=positive", {{"rate", 0.5}})}},
};

}  // namespace

std::span<const OpDef> balance_bias_ops() { return table; }

}  // namespace lancet::ops
