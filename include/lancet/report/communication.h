// The communications of a step and the computation that hides each: as plan.ir predicts it, and as trace.json has it
// measured.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/ir/plan.h"

namespace lancet::report {

struct Timeline;  // src/report/timeline.h

struct Hidden {
  double ms = 0, hidden_ms = 0;  // of all parts; hidden: compute is busy beside it
  std::string by;                // schedule::longest_first
};

// schedule::CommunicationSite with its times.
struct Communication {
  std::string site, pass;
  int parts = 0;
  std::optional<Hidden> predicted = {}, measured = {};  // measured: the mean over the ranks of the trace
  std::optional<int> stage = {};                        // of several pipeline stages
};

// In launch order, with predicted times, if the plan has any, and without measured ones.
std::vector<Communication> communications(const ir::Plan& plan);
// The same with measured times. trace: the file that log.trace writes. Data error: it is no trace, or of another plan.
Result<std::vector<Communication>> communications(const ir::Plan& plan, const std::filesystem::path& trace);
// stage: of which the plan is; its ranks alone are read.
Result<std::vector<Communication>> communications(const ir::Plan& plan, const Timeline& timeline, int stage);

}  // namespace lancet::report
