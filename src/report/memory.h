// memory.json of a run folder: the memory that a rank was planned to take, as the run's banner lists it.
#pragma once
#include <array>
#include <filesystem>
#include <string_view>

#include "lancet/base/result.h"

namespace lancet::report {

// The fields of the file; their values are bytes.
inline constexpr std::array<std::string_view, 6> memory_parts = {"parameters", "optimizer", "arena",
                                                                 "workspace",  "process",   "saving"};

struct Memory {
  std::array<double, memory_parts.size()> bytes{};  // by part
};

// A part that the file does not name counts as 0. Data error: the file is no JSON object of such numbers.
Result<Memory> read_memory(const std::filesystem::path& path);

}  // namespace lancet::report
