// communications() of a trace that has been read.
#pragma once
#include "lancet/report/communication.h"
#include "timeline.h"

namespace lancet::report {

// Data error: the timeline is of another plan.
Result<std::vector<Communication>> communications(const ir::Plan& plan, const Timeline& timeline);

}  // namespace lancet::report
