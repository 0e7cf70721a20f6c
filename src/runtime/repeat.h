// Kernels of repeats (ir/program.h), made of the kernels of their bodies.
#pragma once
#include <vector>

#include "bound_plan.h"

namespace lancet::runtime {

// On the host: the body's kernels run with as many threads as those of the compute stream.
ops::Kernel repeat_on_host(const ir::Instruction& repeat, const Addresses& addresses, std::vector<ops::Kernel> body,
                           int threads);

// On a device: the host thread of the stream waits until the device has the count, once in a step for all repeats of
// the same count, of which notes tell the later ones, and then puts the rounds on the stream. args: of the repeat.
ops::Kernel repeat_on_device(const ops::KernelArgs& args, std::vector<ops::Kernel> body);

}  // namespace lancet::runtime
