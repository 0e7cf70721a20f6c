// Finds the files that come with the program (configs/..., scripts/...), whichever folder it is started in.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace lancet {

// The path of this program's executable, links resolved; empty if the system does not give it.
std::filesystem::path program_path();

// The paths to try, in order, for `name`, a path relative to the source tree: below the current folder, so that a
// clone's own files come first; in share/lancet beside the program, where a build tree links its sources; in
// share/lancet beside the program's folder (PREFIX/share/lancet for PREFIX/bin/lancet). An absolute name is the only
// path to try.
std::vector<std::filesystem::path> shipped_places(const std::filesystem::path& name);

// The first of these paths that exists; empty if none does.
std::filesystem::path first_there(const std::vector<std::filesystem::path>& places);
// first_there(shipped_places(name)).
std::filesystem::path find_shipped(const std::filesystem::path& name);

// " or one of a, b", the names without extension of the JSON files in a folder of the source tree, for errors; empty if
// there are none.
std::string or_shipped_json(const std::filesystem::path& folder);

// "a, b or c", for errors.
std::string either_of(const std::vector<std::filesystem::path>& places);

}  // namespace lancet
