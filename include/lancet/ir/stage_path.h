// Where the plans of pipeline stages are kept.
#pragma once
#include <cstddef>
#include <filesystem>
#include <span>

#include "lancet/base/result.h"
#include "lancet/ir/plan.h"

namespace lancet::ir {

// The file of a pipeline stage's plan beside that of the first stage: "plan.ir", 1 -> "plan.stage1.ir"; of stage 0 the
// path itself.
std::filesystem::path stage_path(const std::filesystem::path& path, std::size_t stage);

// Writes the plans of the stages after the first one beside `path`. stages: all of them; none of a plan without stages.
Status write_later_stages(const std::filesystem::path& path, std::span<const Plan> stages);

}  // namespace lancet::ir
