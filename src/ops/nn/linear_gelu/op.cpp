// A product fused with the GELU that follows it (or, backward, precedes it), for devices whose products have GELU in
// their epilogues. This saves reading GELU's argument again, and writing the gradient of its result. The pass `fuse`
// makes these ops from linear, expert_linear and gelu after autodiff, so they have no gradient rules.
//   linear_gelu(x [...,K], w [N,K] [, b f32[N]]) -> h = x w^T + b, y = gelu(h)
//   linear_dx_gelu(dy [...,N], w [N,K], h [...,K]) -> dh = (dy w) * gelu'(h)
//   expert_linear_gelu(x [E,R,K], w [E,N,K], b f32[E,N], rows) -> h, y           over filled rows
//   expert_linear_dx_gelu(dy [E,R,N], w [E,N,K], h [E,R,K], rows) -> dh
// `work` does not count GELU's own arithmetic, because MFU counts products only.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

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
     .forms = {{"x[...,k] w[n,k] b?:f32[n] -> h[...,n] y[...,n]", "0, 1, n"}},
     .work = work,
     .weights = {1},
     .samples = {of("...=2,4 k=24 n=16 +b"), of("...=4,2 k=7 n=6"), of("...=2,4 k=32 n=48 bf16 +b"),
                 of("...=2,3 k=12 n=18 bf16 +b")},
     .kind = Kind::product,
     .fuses = Fusion{"linear", "gelu"},
     .again = Again{}},
    {.name = "linear_dx_gelu",
     .forms = {{"dy[...,n] w[n,k] h[...,k] -> dh[...,k]", "0, 1, k"}},
     .work = work_dx,
     .samples = {of("...=2,4 n=16 k=24"), of("...=2,4 n=48 k=32 bf16"), of("...=2,3 n=8 k=10 bf16")},
     .kind = Kind::product,
     .fuses = Fusion{"linear_dx", "gelu_dx"}},
    {.name = "expert_linear_gelu",
     .forms = {{"x[e,~r,k] w[e,n,k] b:f32[e,n] rows:i32[e,~*] -> h[e,~r,n] y[e,~r,n]",
                "~ time /tokens, e /tokens, ~ space /tokens, n space"}},
     .work = work,
     .weights = {1},
     .samples = {of("e=4 r=8 k=24 n=16", sample_route), of("e=4 r=8 k=32 n=16 bf16", sample_route),
                 of("e=4 r=8 k=24 n=16", groups_route)},
     .kind = Kind::product,
     .fuses = Fusion{"expert_linear", "gelu", true},
     .again = Again{}},
    {.name = "expert_linear_dx_gelu",
     .forms = {{"dy[e,~r,n] w[e,n,k] h[e,~r,k] rows:i32[e,~*] -> dh[e,~r,k]",
                "~ time /tokens, e /tokens, ~ space /tokens, k space"}},
     .work = work_dx,
     .samples = {of("e=4 r=8 n=16 k=24", sample_route), of("e=4 r=8 n=16 k=32 bf16", sample_route),
                 of("e=4 r=8 n=16 k=24", groups_route)},
     .kind = Kind::product,
     .fuses = Fusion{"expert_linear_dx", "gelu_dx", true}},
};

}  // namespace

std::span<const OpDef> linear_gelu_ops() { return table; }

}  // namespace lancet::ops
