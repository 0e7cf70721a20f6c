// Any text as a plan, read as `lancet train --plan` reads it, gives a sound Plan of known ops or an error of one line.
// A sound plan prints as text that parses to the same.
#include "fuzz/fuzz.h"
#include "lancet/base/check.h"
#include "lancet/ir/plan.h"
#include "lancet/ops/catalogue.h"

using namespace lancet;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const test::AllocationLimit limit(size, 2048);
  const auto plan = ir::parse_plan(text);
  if (!plan.ok()) {
    if (plan.error().message.empty() || plan.error().message.find('\n') != std::string::npos) abort();
    return 0;
  }
  const Status typed = ops::verify(plan->program), sound = ir::verify(*plan);
  if (!sound.ok()) return 0;
  if (typed.ok())
    for (const ir::Instruction& instruction : plan->program.instructions) (void)ops::work(plan->program, instruction);
  const std::string printed = ir::print(*plan);
  const auto again = ir::parse_plan(printed);
  if (!again.ok() || ir::print(*again) != printed) abort();
  return 0;
}
