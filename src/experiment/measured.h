// Which of a file's measured costs go before a declared machine's.
#pragma once
#include <string>

#include "lancet/cost/hardware.h"

namespace lancet::experiment {

// Those of so many ranks and hosts, where the file holds them; else the ops of its one device, without communication
// (of several devices the one whose local ranks are the layout's). threads: of a rank; 0: any. Config error: none fits,
// or several do.
Result<cost::Profile> profile_of(const cost::ProfileFile& file, const std::string& path, const cost::Layout& layout,
                                 int threads);

}  // namespace lancet::experiment
