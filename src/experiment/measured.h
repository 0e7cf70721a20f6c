// Selects the measured costs of a profile file that override a declared machine's.
#pragma once
#include <string>

#include "lancet/cost/hardware.h"

namespace lancet::experiment {

// Returns the costs that were measured on the layout's ranks and hosts, if the file has them. Otherwise returns the op
// times of the file's only device without communication; of several devices, those of the only one with the layout's
// number of local ranks. threads: of a rank; 0: any. Config error: no entry fits, or several do.
Result<cost::Profile> profile_of(const cost::ProfileFile& file, const std::string& path, const cost::Layout& layout,
                                 int threads);

}  // namespace lancet::experiment
