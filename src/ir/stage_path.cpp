#include "lancet/ir/stage_path.h"

#include <fmt/format.h>

namespace lancet::ir {

std::filesystem::path stage_path(const std::filesystem::path& path, std::size_t stage) {
  if (stage == 0) return path;
  return path.parent_path() / fmt::format("{}.stage{}{}", path.stem().string(), stage, path.extension().string());
}

}  // namespace lancet::ir
