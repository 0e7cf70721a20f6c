// Readiness: which rows of a tensor each signal announces.
//
// An instruction that makes signals says so by its attribute readiness=rows/N. The signals announce its first result,
// [..., R, D]: each announces N consecutive rows of the R, the last fewer if N does not divide R. So there are
// ... * ceil(R / N) of them, in the order of the rows. Its kernel, or a peer's, sets a signal to the number of the step
// once these rows are there. Where peers write the rows, the kernel ends only once all its signals are set on this
// rank. So its end means that its results are complete, as that of any other instruction: for readers that take no
// signals, for outputs, for other uses of the memory, and for searches of its results.
#pragma once
#include <cstdint>

#include "lancet/base/result.h"
#include "lancet/ir/program.h"

namespace lancet::ir {

inline constexpr std::string_view readiness = "readiness";

// The signals among the results; invalid if there are none.
TensorId signals_of(const Program& program, const Instruction& instruction);

// True if the instruction makes or takes signals.
bool uses_signals(const Program& program, const Instruction& instruction);

// N of readiness=rows/N. Error, "expected ...": the attribute is missing, or has another value.
Result<std::int64_t> rows_per_signal(const Attributes& attributes);

// How many signals announce a tensor of at least two axes.
std::int64_t signal_count(const Shape& shape, std::int64_t rows_per_signal);

// Success if the instruction makes no signals and has no readiness, or if its signals match the rows of its first
// result. The error says what was expected.
Status verify_readiness(const Program& program, const Instruction& instruction);

}  // namespace lancet::ir
