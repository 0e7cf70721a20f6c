// Programs as text: parse(print(p)) is p, and print(parse(t)) is t, except that print() omits views that nothing names.
#pragma once
#include <string>
#include <string_view>

#include "lancet/base/result.h"
#include "lancet/ir/program.h"

namespace lancet::ir {

std::string print(const Program& program);
std::string print(const Program& program, const Instruction& instruction);  // one line, without the newline
std::string print(const Tensor& named);  // the line that declares an input, parameter or state, without the newline
// Errors (exit code 2) name the line and what was expected there.
Result<Program> parse(std::string_view text);

}  // namespace lancet::ir
