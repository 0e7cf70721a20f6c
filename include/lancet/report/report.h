// A run to look at: what its folder holds, as one HTML page that needs no network.
#pragma once
#include <filesystem>
#include <span>
#include <string>

#include "lancet/base/result.h"

namespace lancet::report {

// runs: run folders, each with a metrics.jsonl; config.json, plan.ir and trace.json are shown where they are. Several
// runs are overlaid and their configs compared. Text from the files is data in the page, never markup.
// Data errors name the file, and the line of a record that is broken; the last line may be cut short and is then left
// out, since a run may be writing it.
Result<std::string> page(std::span<const std::filesystem::path> runs);

}  // namespace lancet::report
