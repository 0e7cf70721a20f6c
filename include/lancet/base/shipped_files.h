// Files that come with the program (configs/..., scripts/...), found from whichever folder it is started in.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace lancet {

// This program's own file, links followed; empty where the system does not say.
std::filesystem::path program_path();

// Where `name`, a path as it is in the sources, is looked for, in order: below the current folder, so that a clone's
// own files go first; in share/lancet beside the program, where a build tree links its sources; in share/lancet beside
// the program's folder (PREFIX/share/lancet of PREFIX/bin/lancet). An absolute name is looked for where it says.
std::vector<std::filesystem::path> shipped_places(const std::filesystem::path& name);

// The first of some places where there is something; empty: none.
std::filesystem::path first_there(const std::vector<std::filesystem::path>& places);
// That of shipped_places(name).
std::filesystem::path find_shipped(const std::filesystem::path& name);

// "a, b or c", for errors.
std::string either_of(const std::vector<std::filesystem::path>& places);

}  // namespace lancet
