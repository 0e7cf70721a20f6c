#include "report/memory.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lancet/base/atomic_file.h"
#include "lancet/base/json.h"

namespace lancet::report {

using nlohmann::json;

Result<Memory> read_memory(const std::filesystem::path& path) {
  LANCET_ASSIGN(const std::string text, read_file(path, "a run's memory plan"));
  const json root = json_of(text);
  if (!root.is_object()) return data_error(fmt::format("{}: expected a JSON object, found none", path.string()));
  Memory memory;
  for (std::size_t i = 0; i < memory_parts.size(); ++i) {
    const auto value = root.find(memory_parts[i]);
    if (value == root.end()) continue;
    if (!value->is_number() || *value < 0)
      return data_error(fmt::format("{}: expected \"{}\" to be a number of bytes, found another value", path.string(),
                                    memory_parts[i]));
    memory.bytes[i] = value->get<double>();
  }
  return memory;
}

}  // namespace lancet::report
