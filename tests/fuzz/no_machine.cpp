// Replacements for the identities of program and machine that tell experiments apart: none.
#include "experiment/machine.h"
#include "lancet/experiment/experiment.h"

namespace lancet::experiment {

std::string_view simulator_build() { return "0123456789abcdef"; }
std::string processor_name() { return "none"; }

}  // namespace lancet::experiment
