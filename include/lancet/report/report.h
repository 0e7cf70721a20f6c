// A run to look at: what its folder holds, as one HTML page that needs no network.
#pragma once
#include <filesystem>
#include <span>
#include <string>

#include "lancet/base/result.h"

namespace lancet::report {

// runs: run folders, each with a metrics.jsonl; config.json, plan.ir and trace.json are shown where they are. Several
// runs are overlaid and their configs compared. Text from the files is data in the page, never markup.
// Lines of metrics.jsonl that are no records are left out, and the page and the log name the first; so is a last line that
// is cut short, without a word in the log, since a run may be writing it. Data errors name the file.
Result<std::string> page(std::span<const std::filesystem::path> runs);

}  // namespace lancet::report
