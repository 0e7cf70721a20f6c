// Where the plans of pipeline stages are kept.
#pragma once
#include <cstddef>
#include <filesystem>

namespace lancet::ir {

// The file of a pipeline stage's plan beside that of the first stage: "plan.ir", 1 -> "plan.stage1.ir"; of stage 0 the
// path itself.
std::filesystem::path stage_path(const std::filesystem::path& path, std::size_t stage);

}  // namespace lancet::ir
