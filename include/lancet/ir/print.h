// Programs as text; parse(print(p)) is p, and print(parse(t)) is t (a view that nothing names is left out).
#pragma once
#include <string>
#include <string_view>

#include "lancet/base/result.h"
#include "lancet/ir/program.h"

namespace lancet::ir {

std::string print(const Program& program);
std::string print(const Program& program, const Instruction& instruction);  // one line, without the newline
// Errors name the line and what was expected there (exit code 2).
Result<Program> parse(std::string_view text);

}  // namespace lancet::ir
