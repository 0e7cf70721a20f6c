// The optimizers' updates, in place.
//   adamw(&w, &m, &v, gradient, schedule [, &master]): AdamW (Loshchilov and Hutter)
//   sgd(&w, &v, gradient, schedule [, &master]): SGD with momentum, v = momentum * v + (gradient + weight_decay * w);
//     w -= lr * v
//   balance_bias(&bias f32[E], counts f32[E], schedule) {rate}: the update of a bias that balances the load of the
//     experts (Wang et al., Auxiliary-Loss-Free Load Balancing, algorithm 1): bias_e += rate * sign(mean - c_e), where
//     c_e counts how often the tokens of the step chose expert e, and the mean is over the experts. Of the schedule
//     only the gradient's factor has an influence
// schedule: ops/schedule_layout.h. If the gradient's factor is NaN, because the norm is not finite, nothing is written,
//   so that the fault can be reproduced with these weights
// master f32 of w's shape, for bf16 w: the exact weights, of which w is the rounded copy
#include "lancet/base/flat_shard.h"
#include "lancet/ops/schedule_layout.h"
#include "ops/describe.h"

namespace lancet::ops {
namespace {

// Checks the types of update(&w, &state..., gradient, schedule [, &master]) with `states` tensors of state. State,
// gradient and master are f32 of w's shape. A bf16 w has either a master copy, of which it is the rounding to nearest,
// or the attribute `rounding_seed`, by which it is rounded stochastically (base/rounding.h). An update has no results.
// The attribute `shards` makes it an update of this rank's flat shard of w (base/flat_shard.h), one of that number of
// shards: state, gradient and master are f32 of a shard's size, and w is whole.
Inferred infer_update(const OpInput& in, std::size_t states) {
  const TensorType& w = in.operands[0];
  const std::int64_t shards = in.attributes.integer("shards", 1);
  if (shards < 1) return expected("at least one shard");
  const bool sharded = in.attributes.has("shards");
  const TensorType full{DType::f32, sharded ? Shape{flat_shard_elements(w.shape.elements(), shards)} : w.shape};
  const std::size_t gradient = states + 1, numbers = states + 2, master = states + 3;
  if (!is_activation(w.dtype)) return expected("w of f32 or bf16");
  for (std::size_t i = 1; i <= gradient; ++i)
    if (in.operands[i] != full) return expected("the optimizer's state and the gradient f32 like w, or like its shard");
  if (!is_vector(in.operands[numbers], schedule::plain) && !is_vector(in.operands[numbers], schedule::clipped))
    return expected("a schedule f32[4] or, clipped, f32[5]");
  const int kept = int(in.operands.size() > master) + int(in.attributes.has("rounding_seed"));
  if (kept != int(w.dtype == DType::bf16)) return expected("a master copy or a rounding_seed exactly where w is bf16");
  if (in.operands.size() > master && in.operands[master] != full)
    return expected("a master copy f32 like w, or like its shard");
  return Types{};
}

Inferred infer_adamw(const OpInput& in) { return infer_update(in, 2); }

Work work_adamw(const OpInput& in) {
  const double elements = double(in.operands[1].shape.elements());
  const bool master = in.operands.size() > 5, stochastic = in.attributes.has("rounding_seed");
  return {14 * elements, elements * (master ? 30 : stochastic ? 24 : 28)};
}

const Attributes adamw_sample{{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}};
const Attributes rounded_adamw{
    {"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}, {"rounding_seed", 7}};

Inferred infer_sgd(const OpInput& in) { return infer_update(in, 1); }

Work work_sgd(const OpInput& in) {
  const double elements = double(in.operands[1].shape.elements());
  const bool master = in.operands.size() > 4, stochastic = in.attributes.has("rounding_seed");
  return {5 * elements, elements * (master ? 22 : stochastic ? 16 : 20)};
}

const Attributes sgd_sample{{"momentum", 0.9}, {"weight_decay", 0.01}};
const Attributes rounded_sgd{{"momentum", 0.9}, {"weight_decay", 0.01}, {"rounding_seed", 7}};

Status check_schedule(const OpInput& in, Types&) {
  const std::int64_t numbers = in.operands[2].shape[0];
  if (numbers != schedule::plain && numbers != schedule::clipped)
    return expected("a schedule f32[4] or, clipped, f32[5]");
  return {};
}

const OpDef table[] = {
    {.name = "adamw",
     .required = 5,
     .most = 6,
     .infer = infer_adamw,
     .work = work_adamw,
     .writes = {0, 1, 2, 5},
     .samples = {{{f32({9, 7}), f32({9, 7}), f32({9, 7}, Fill::positive), f32({9, 7}), f32({5}, Fill::positive)},
                  adamw_sample},
                 {{bf16({40}), f32({40}), f32({40}, Fill::positive), f32({40}), f32({4}, Fill::positive), f32({40})},
                  adamw_sample},
                 {{bf16({40}), f32({40}), f32({40}, Fill::positive), f32({40}), f32({5}, Fill::positive)},
                  rounded_adamw},
                 {{bf16({40}), f32({48}), f32({48}, Fill::positive), f32({48}), f32({4}, Fill::positive), f32({48})},
                  {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}, {"shards", 1}}}}},
    {.name = "sgd",
     .required = 4,
     .most = 5,
     .infer = infer_sgd,
     .work = work_sgd,
     .writes = {0, 1, 4},
     .samples = {{{f32({9, 7}), f32({9, 7}), f32({9, 7}), f32({5}, Fill::positive)}, sgd_sample},
                 {{bf16({40}), f32({40}), f32({40}), f32({4}, Fill::positive), f32({40})}, sgd_sample},
                 {{bf16({40}), f32({40}), f32({40}), f32({5}, Fill::positive)}, rounded_sgd},
                 {{f32({9, 7}), f32({64}), f32({64}), f32({4}, Fill::positive)},
                  {{"momentum", 0.9}, {"weight_decay", 0.01}, {"shards", 1}}}}},
    {.name = "balance_bias",
     .forms = {{"&bias:f32[e] counts:f32[e] schedule:f32[n] ->"}},
     .check = check_schedule,
     .samples = {of("e=4 n=4 counts=positive schedule=positive", {{"rate", 0.25}}),
                 of("e=40 n=5 counts=positive schedule=positive", {{"rate", 0.001}}),
                 of("e=3 n=4 counts=zero schedule=positive", {{"rate", 0.5}})}},
};

}  // namespace

std::span<const OpDef> update_ops() { return table; }

}  // namespace lancet::ops
