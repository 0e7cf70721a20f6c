// Causal multi-head self-attention on packed q, k, v (GPT-2's c_attn output); scores scaled by 1/sqrt(head size).
//   attention(qkv [B,S,(G+1+1)*H*hd] [, all]) {heads, group} -> out [B,S,G*H*hd], lse f32[B,G*H,S]
//   attention_dx(dout, qkv, out, lse [, all [, later]]) -> dqkv [, sums f32[B,T,2*H*hd]]
// A part of the positions has the queries of qkv and the keys and values of `all` [B,T,(G+1+1)*H*hd], the T positions
// up to its own last one. Backward the later part comes first: `sums` are the gradients of all keys, then of all
// values, by the queries from the part's own on. They are added onto those of the parts behind it, `later`, in place;
// those of its own positions are then complete and rounded into dqkv. Each of H `heads` of keys and values is read by a
// `group` of G heads of queries, 1 without the attribute: head h of queries reads the keys of head h / G. Attribute
// deterministic=0: the gradient of q may be summed in another order in each run, where that is faster.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

void gradient(GradientContext& g) {
  const ir::Instruction& forward = g.instruction();
  g.add(0, g.emit("attention_dx", {g.result_gradient(0), forward.operands[0], forward.results[0], forward.results[1]},
                  forward.attributes, ir::Role::dx)[0]);
}

// The heads of queries and the blocks of qkv, in units of the keys' heads.
double queries(const OpInput& in) { return double(in.attributes.integer("group", 1)); }
double blocks(const OpInput& in) { return queries(in) + 2; }
// The flops of one product over the lower triangle, q k^T or p v: 2 * S * (S+1) / 2 * head size per head of queries,
// and over the positions before a part.
double triangle(const OpInput& in, std::size_t qkv_at, std::size_t all_at) {
  const Shape& qkv = in.operands[qkv_at].shape;
  const std::int64_t before = in.operands.size() > all_at ? in.operands[all_at].shape[1] - qkv[1] : 0;
  return double(qkv[0]) * double(qkv[1]) * double(qkv[1] + 1 + 2 * before) * double(qkv[2]) * queries(in) / blocks(in);
}
double bytes(const OpInput& in, std::size_t operand) {
  return operand < in.operands.size() ? double(ir::bytes(in.operands[operand])) : 0;
}
Work work(const OpInput& in) {
  const double of_all = bytes(in, 1) * 2 / blocks(in);
  return {2 * triangle(in, 0, 1), bytes(in, 0) * (blocks(in) + queries(in)) / blocks(in) + of_all};
}
Work work_dx(const OpInput& in) {  // five products: scores again, dv, dp, dq, dk
  const double own = bytes(in, 0) + bytes(in, 1) + bytes(in, 2) + bytes(in, 3), read = blocks(in) + 2 * queries(in);
  const double of_all = bytes(in, 4) * 2 / blocks(in), sums = 2 * bytes(in, 5);
  return {5 * triangle(in, 1, 4), own * (read + blocks(in)) / read + of_all + sums};
}

// A part's keys and values are those of at least its own positions.
Status check_part(const OpInput& in, std::size_t qkv, std::size_t all) {
  if (in.operands.size() > all && in.operands[all].shape[1] < in.operands[qkv].shape[1])
    return expected("all[b,t,(@group?+1+1)*@heads*c] with t at least s");
  return {};
}
Status check(const OpInput& in, Types&) { return check_part(in, 0, 1); }
Status check_dx(const OpInput& in, Types&) { return check_part(in, 1, 4); }

// Parts of the positions of one sequence.
const PositionParts parts{.row = {{0}, {0, last}, SplitIn::time}, .up_to = 0},
    parts_dx{.row = {{0, 0, 0, last}, {0}, SplitIn::time}, .up_to = 1, .sums = true, .as = 3};

const OpDef table[] = {
    {.name = "attention",
     .forms = {{"qkv[b,s,(@group?+1+1)*@heads*c] -> out[b,s,@heads*@group?*c] lse:f32[b,@heads*@group?,s]",
                "b, @heads space"},
               {"qkv[b,s,(@group?+1+1)*@heads*c] all[b,t,(@group?+1+1)*@heads*c] -> out[b,s,@heads*@group?*c] "
                "lse:f32[b,@heads*@group?,s]"}},
     .check = check,
     .gradient = gradient,
     .work = work,
     .positions = parts,
     .samples = {of("b=2 s=9 @heads=2 c=8"), of("b=2 s=1 @heads=1 c=5"), of("b=2 s=16 @heads=2 c=16 bf16"),
                 of("b=2 s=7 @heads=2 @group=2 c=5"), of("b=1 s=6 @heads=1 @group=4 c=80"),
                 of("b=2 s=9 @heads=4 @group=2 c=16 bf16")},
     .kind = Kind::attention,
     .again = Again{}},
    {.name = "attention_dx",
     .forms = {{"dout[b,s,@heads*@group?*c] qkv[b,s,(@group?+1+1)*@heads*c] out[b,s,@heads*@group?*c] "
                "lse:f32[b,@heads*@group?,s] -> dqkv[b,s,(@group?+1+1)*@heads*c]",
                "b, @heads space"},
               {"dout[b,s,@heads*@group?*c] qkv[b,s,(@group?+1+1)*@heads*c] out[b,s,@heads*@group?*c] "
                "lse:f32[b,@heads*@group?,s] all[b,t,(@group?+1+1)*@heads*c] later?:f32[b,t,2*@heads*c] -> "
                "dqkv[b,s,(@group?+1+1)*@heads*c] sums:f32[b,t,2*@heads*c]"}},
     .check = check_dx,
     .work = work_dx,
     .aliases = {{1, 5}},
     .positions = parts_dx,
     .samples = {of("b=2 s=9 @heads=2 c=8 lse=positive"), of("b=2 s=7 @heads=2 @group=2 c=5 lse=positive"),
                 of("b=2 s=9 @heads=4 @group=2 c=16 bf16 lse=positive"),
                 of("b=2 s=3 t=7 @heads=2 @group=2 c=5 lse=positive +later"),
                 of("b=1 s=4 t=12 @heads=2 c=16 bf16 lse=positive")},
     .kind = Kind::attention},
};

}  // namespace

std::span<const OpDef> attention_ops() { return table; }

}  // namespace lancet::ops
