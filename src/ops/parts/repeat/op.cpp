// repeat runs a body (ir/program.h); executors run it, so that it has no kernels. Its work is counted as none: where
// all choices of a layer fit into the first window of slots, which is what is expected, the body does not run.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Inferred infer(const OpInput&) { return expected("a body"); }
Work work(const OpInput&) { return {}; }

const OpDef table[] = {
    {.name = "repeat", .required = 1, .most = any_number, .infer = infer, .work = work, .stream = ir::Stream::expert},
};

}  // namespace

std::span<const OpDef> repeat_ops() { return table; }

}  // namespace lancet::ops
