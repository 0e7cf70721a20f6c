#pragma once
#include <string>

namespace lancet::experiment {

// This machine's processor, as its profile calls it, and by its family and model, since names of virtual machines say
// little: "AMD EPYC (family 25, model 17)".
std::string processor_name();

// What a time was measured on: processor, cores used of those that this process may use, clock (the highest, where the
// system says one), the governor that sets it, memory. used: 0 for all.
//   "AMD EPYC (family 25, model 17), 2 of 2 cores, 2.6 GHz, governor unknown, 24 GiB"
std::string machine_label(int used);

}  // namespace lancet::experiment
