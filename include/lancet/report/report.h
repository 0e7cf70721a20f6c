// Makes one self-contained HTML page of the records in run folders.
#pragma once
#include <filesystem>
#include <span>
#include <string>

#include "lancet/base/result.h"

namespace lancet::report {

// runs: run folders with metrics.jsonl, config.json, plan.ir, perhaps memory.json and, if a step was traced,
// trace.json. A file that is missing or broken is left out, and the page and the log say why. Several runs are overlaid
// and their configs compared. Text from the files is data in the page, never markup. Lines of metrics.jsonl that are no
// records are skipped, and the page and the log name the first of them. A last line that is cut short is skipped
// without a warning, since a run may be writing it. Data error: nothing of a run can be shown.
Result<std::string> page(std::span<const std::filesystem::path> runs);

}  // namespace lancet::report
