// A product fused with the GELU that follows it (or, backward, precedes it), for devices whose products have GELU in
// their epilogues. This saves reading GELU's argument again, and writing the gradient of its result. The pass `fuse`
// makes these ops from linear, expert_linear and gelu after autodiff, so they have no gradient rules.
//   linear_gelu(x [...,K], w [N,K] [, b f32[N]]) -> h = x w^T + b, y = gelu(h)
//   linear_dx_gelu(dy [...,N], w [N,K], h [...,K]) -> dh = (dy w) * gelu'(h)
//   expert_linear_gelu(x [E,R,K], w [E,N,K], b f32[E,N], rows) -> h, y           over filled rows
//   expert_linear_dx_gelu(dy [E,R,N], w [E,N,K], h [E,R,K], rows) -> dh
// `work` does not count GELU's own arithmetic, because MFU counts products only.
#include "ops/product_types.h"

namespace lancet::ops {
namespace {

// Forward: the types of GELU's argument and of its result, which are equal.
template <Inferred product(const OpInput&)>
Inferred with_gelu(const OpInput& in) {
  LANCET_ASSIGN(Types types, product(in));
  types.push_back(types[0]);
  return types;
}

// Backward: the type of the result, which GELU's argument must have too.
template <Inferred product(const OpInput&)>
Inferred with_gelu_slope(const OpInput& in) {
  LANCET_ASSIGN(Types types, product(in));
  if (in.operands[2] != types[0]) return expected("h like the result");
  return types;
}

// A row has `before` elements before the product and `after` elements after it. The latter count twice: as GELU's
// argument and its result, or as its argument and the gradient.
Work work_of(const OpInput& in, std::int64_t rows, std::int64_t before, std::int64_t after) {
  const double elements = double(before + 2 * after), size = size_of(in.operands[0].dtype);
  return {2 * double(rows) * double(before) * double(after),
          double(rows) * elements * size + double(ir::bytes(in.operands[1]))};
}
Work work(const OpInput& in) {
  const Shape &x = in.operands[0].shape, &w = in.operands[1].shape;
  return work_of(in, expected_rows(in, x.rows()), w[-1], w[-2]);
}
Work work_dx(const OpInput& in) {
  const Shape &dy = in.operands[0].shape, &w = in.operands[1].shape;
  return work_of(in, expected_rows(in, dy.rows()), w[-2], w[-1]);
}

const Attributes sample_route{{"capacity", 8}, {"tokens", 16}};

const Attributes groups_route{{"capacity", 2}, {"groups", 4}, {"tokens", 16}};

const OpDef table[] = {
    {.name = "linear_gelu",
     .required = 2,
     .most = 3,
     .infer = with_gelu<linear_types>,
     .work = work,
     .weights = {1},
     .partition = {{{0, none, none}, {0, 0}}, {{1, none, none}, {1, 1}}, {{none, 0, 0}, {last, last}}},
     .samples = {{{f32({2, 4, 24}), f32({16, 24}), f32({16})}, {}},
                 {{f32({4, 2, 7}), f32({6, 7})}, {}},
                 {{bf16({2, 4, 32}), bf16({48, 32}), f32({48})}, {}},
                 {{bf16({2, 3, 12}), bf16({18, 12}), f32({18})}, {}}},
     .kind = Kind::product,
     .fuses = Fusion{"linear", "gelu"},
     .again = Again{}},
    {.name = "linear_dx_gelu",
     .required = 3,
     .infer = with_gelu_slope<linear_dx_types>,
     .work = work_dx,
     .partition = {{{0, none, 0}, {0}}, {{1, none, 1}, {1}}, {{none, 1, last}, {last}}},
     .samples = {{{f32({2, 4, 16}), f32({16, 24}), f32({2, 4, 24})}, {}},
                 {{bf16({2, 4, 48}), bf16({48, 32}), bf16({2, 4, 32})}, {}},
                 {{bf16({2, 3, 8}), bf16({8, 10}), bf16({2, 3, 10})}, {}}},
     .kind = Kind::product,
     .fuses = Fusion{"linear_dx", "gelu_dx"}},
    {.name = "expert_linear_gelu",
     .required = 4,
     .infer = with_gelu<expert_linear_types>,
     .work = work,
     .weights = {1},
     .partition = {{{irregular, none, none, irregular}, {irregular, irregular}, SplitIn::time, {"tokens"}},
                   {{0, 0, 0, 0}, {0, 0}, SplitIn::both, {"tokens"}},
                   {{1, none, none, partial}, {1, 1}, SplitIn::space, {"tokens"}},
                   {{none, 1, 1, none}, {last, last}, SplitIn::space}},
     .samples = {{{f32({4, 8, 24}), f32({4, 16, 24}), f32({4, 16}), i32({4, 2}, Fill::rows)}, sample_route},
                 {{bf16({4, 8, 32}), bf16({4, 16, 32}), f32({4, 16}), i32({4, 2}, Fill::rows)}, sample_route},
                 {{f32({4, 8, 24}), f32({4, 16, 24}), f32({4, 16}), i32({4, 2}, Fill::rows)}, groups_route}},
     .kind = Kind::product,
     .fuses = Fusion{"expert_linear", "gelu", true},
     .again = Again{},
     .ragged = Ragged{{0}, {0, 1}, 3}},
    {.name = "expert_linear_dx_gelu",
     .required = 4,
     .infer = with_gelu_slope<expert_linear_dx_types>,
     .work = work_dx,
     .partition = {{{irregular, none, irregular, irregular}, {irregular}, SplitIn::time, {"tokens"}},
                   {{0, 0, 0, 0}, {0}, SplitIn::both, {"tokens"}},
                   {{1, none, 1, partial}, {1}, SplitIn::space, {"tokens"}},
                   {{none, 2, last, none}, {last}, SplitIn::space}},
     .samples = {{{f32({4, 8, 16}), f32({4, 16, 24}), f32({4, 8, 24}), i32({4, 2}, Fill::rows)}, sample_route},
                 {{bf16({4, 8, 16}), bf16({4, 16, 32}), bf16({4, 8, 32}), i32({4, 2}, Fill::rows)}, sample_route},
                 {{f32({4, 8, 16}), f32({4, 16, 24}), f32({4, 8, 24}), i32({4, 2}, Fill::rows)}, groups_route}},
     .kind = Kind::product,
     .fuses = Fusion{"expert_linear_dx", "gelu_dx", true},
     .ragged = Ragged{{0, 2}, {0}, 3}},
};

}  // namespace

std::span<const OpDef> linear_gelu_ops() { return table; }

}  // namespace lancet::ops
