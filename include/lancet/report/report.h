// Makes one self-contained HTML page of the records in run folders.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/ir/plan.h"

namespace lancet::report {

// runs: run folders with metrics.jsonl, config.json, plan.ir, perhaps memory.json and, if a step was traced,
// trace.json. A file that is missing or broken is left out, and the page and the log say why. Several runs are overlaid
// and their configs compared. Text from the files is data in the page, never markup. Lines of metrics.jsonl that are no
// records are skipped, and the page and the log name the first of them. A last line that is cut short is skipped
// without a warning, since a run may be writing it. Data error: nothing of a run can be shown.
Result<std::string> page(std::span<const std::filesystem::path> runs);

// The communications of a step and the computation that hides each: as plan.ir predicts it, and as trace.json has it
// measured.

struct Timeline;  // src/report/run_files.h

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
