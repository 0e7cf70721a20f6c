// The filled rows of the experts' buffers where no other rank sends any: there a buffer is the experts' slots, and what
// the route fills of them is known without messages.
//   filled_rows(route) -> rows i32[E,2]: where each expert's filled slots begin and end
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Inferred infer(const OpInput& in) {
  const TensorType& route = in.operands[0];
  if (route.dtype != DType::route) return expected("a route");
  return Types{{DType::i32, {route.shape[1], 2}}};
}

Work work(const OpInput& in) { return {0, 16.0 * double(in.operands[0].shape[1])}; }

const OpDef table[] = {{.name = "filled_rows",
                        .required = 1,
                        .infer = infer,
                        .work = work,
                        .samples = {{{route({16, 4})}, {{"capacity", 4}, {"tokens", 16}}}}}};

}  // namespace

std::span<const OpDef> filled_rows_ops() { return table; }

}  // namespace lancet::ops
