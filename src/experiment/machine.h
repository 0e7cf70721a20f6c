// Names this machine's processor and its state, for the ids and the records of points.
#pragma once
#include <string>

namespace lancet::experiment {

// Returns the processor's name as in profiles, with its family and model, since the names on virtual machines are
// vague: "AMD EPYC (family 25, model 17)".
std::string processor_name();

// Describes the machine of a measured time: processor, cores used of those that this process may use, clock (the
// highest if the system reports one, else the current), frequency governor, memory. used: 0 for all cores.
//   "AMD EPYC (family 25, model 17), 2 of 2 cores, 2.6 GHz, governor unknown, 24 GiB"
std::string machine_label(int used);

}  // namespace lancet::experiment
