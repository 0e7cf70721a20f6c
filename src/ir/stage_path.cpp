#include "lancet/ir/stage_path.h"

#include <fmt/format.h>

#include "lancet/base/atomic_file.h"
#include "lancet/ir/print.h"

namespace lancet::ir {

std::filesystem::path stage_path(const std::filesystem::path& path, std::size_t stage) {
  if (stage == 0) return path;
  return path.parent_path() / fmt::format("{}.stage{}{}", path.stem().string(), stage, path.extension().string());
}

Status write_later_stages(const std::filesystem::path& path, std::span<const Plan> stages) {
  for (std::size_t stage = 1; stage < stages.size(); ++stage)
    LANCET_TRY(write_file(stage_path(path, stage), print(stages[stage])));
  return {};
}

}  // namespace lancet::ir
