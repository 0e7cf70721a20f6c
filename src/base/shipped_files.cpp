#include "lancet/base/shipped_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

namespace lancet {

namespace fs = std::filesystem;

fs::path program_path() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  return error ? fs::path() : program;
}

std::vector<fs::path> shipped_places(const fs::path& name) {
  if (name.is_absolute()) return {name};
  std::vector<fs::path> places{name};
  if (const fs::path folder = program_path().parent_path(); !folder.empty())
    for (const fs::path& beside : {folder, folder.parent_path()}) places.push_back(beside / "share/lancet" / name);
  return places;
}

fs::path first_there(const std::vector<fs::path>& places) {
  std::error_code unknown;
  for (const fs::path& place : places)
    if (fs::exists(place, unknown)) return place;
  return {};
}

fs::path find_shipped(const fs::path& name) { return first_there(shipped_places(name)); }

std::string or_shipped_json(const fs::path& folder) {
  std::set<std::string> names;
  std::error_code error;
  for (const fs::path& place : shipped_places(folder))
    for (const auto& entry : fs::directory_iterator(place, error))
      if (entry.path().extension() == ".json") names.insert(entry.path().stem().string());
  return names.empty() ? "" : fmt::format(" or one of {}", fmt::join(names, ", "));
}

std::string either_of(const std::vector<fs::path>& places) {
  std::string text;
  for (std::size_t i = 0; i < places.size(); ++i)
    text += (i == 0 ? "" : i + 1 == places.size() ? " or " : ", ") + places[i].string();
  return text;
}

}  // namespace lancet
