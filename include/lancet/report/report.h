// A run to look at: what its folder holds, as one HTML page that needs no network.
#pragma once
#include <filesystem>
#include <span>
#include <string>

#include "lancet/base/result.h"

namespace lancet::report {

// runs: run folders with metrics.jsonl, config.json, plan.ir and, where a step was traced, trace.json. What is missing or
// broken of these is left out, and the page and the log say why. Several runs are overlaid and their configs compared.
// Text from the files is data in the page, never markup.
// Lines of metrics.jsonl that are no records are left out, and the page and the log name the first; so is a last line that
// is cut short, without a word in the log, since a run may be writing it. Data error: of a run nothing can be drawn.
Result<std::string> page(std::span<const std::filesystem::path> runs);

}  // namespace lancet::report
