// Creates, lists and removes checkpoint folders. Each change of the set of checkpoints is one rename, so a crash at any
// point leaves the old state or the new one, plus names that end in .tmp: a save writes step-N.tmp, adds the manifest
// last, syncs the folder and renames it to step-N; a removal renames step-N to step-N.removed.tmp before it deletes the
// files. remove_leftovers() deletes such names after a crash. When a run restarts from an earlier step,
// set_aside_after() renames the later checkpoints to step-N.old; resume and pruning ignore these names.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "lancet/base/atomic_file.h"
#include "lancet/checkpoint/checkpoint.h"

namespace lancet::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view prefix = "step-";
constexpr std::string_view temporary = ".tmp";
constexpr std::string_view aside = ".old";

std::vector<std::string> names_in(const fs::path& folder, std::error_code& error) {
  std::vector<std::string> names;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    names.push_back(at->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}
std::vector<std::string> names_in(const fs::path& folder) {
  std::error_code ignored;
  return names_in(folder, ignored);
}

std::vector<std::int64_t> steps_of(const std::vector<std::string>& names) {
  std::vector<std::int64_t> steps;
  for (const std::string& name : names)
    if (const auto step = step_of(name)) steps.push_back(*step);
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

// Checks the manifest and the sizes of the files. Only the manifest is opened, so many folders can be checked quickly.
bool looks_whole(const fs::path& folder) {
  const auto text = read_file(folder / "manifest.json", "a checkpoint's manifest");
  if (!text.ok()) return false;
  const auto manifest = parse_manifest(*text, folder.string());
  if (!manifest.ok()) return false;
  for (const ShardFile& shard : manifest->files) {
    std::error_code error;
    if (fs::file_size(folder / shard.name, error) != shard.bytes || error) return false;
  }
  return true;
}

Status remove_checkpoint(FileSystem& files, const fs::path& checkpoints, std::int64_t step) {
  const fs::path gone = checkpoints / (folder_name(step) + ".removed" + std::string(temporary));
  LANCET_TRY(files.remove(gone));
  LANCET_TRY(files.rename(checkpoints / folder_name(step), gone));
  return files.remove(gone);
}

}  // namespace

std::string folder_name(std::int64_t step) { return fmt::format("{}{:06}", prefix, step); }

std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(prefix)) return {};
  std::int64_t step = -1;
  const auto [end, error] = std::from_chars(name.data() + prefix.size(), name.data() + name.size(), step);
  if (error != std::errc() || step < 0 || folder_name(step) != name) return {};
  return step;
}

std::vector<std::int64_t> steps_in(const fs::path& checkpoints) { return steps_of(names_in(checkpoints)); }

Result<std::vector<std::int64_t>> list_steps(const fs::path& checkpoints) {
  std::error_code error;
  const auto names = names_in(checkpoints, error);
  const bool nothing = error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
  if (error && !nothing)
    return internal_error(fmt::format("{}: cannot be read: {}", checkpoints.string(), error.message()));
  // An existing file or link does not count as "no checkpoints": a link may lead to a disk that is not mounted.
  std::error_code ignored;
  const auto there = fs::symlink_status(checkpoints, ignored).type();
  if (error && there != fs::file_type::not_found && there != fs::file_type::none)
    return data_error(fmt::format("{}: expected a folder of checkpoints, found {}", checkpoints.string(),
                                  there == fs::file_type::symlink ? "a link to a missing file" : "a file"));
  return steps_of(names);
}

fs::path temporary_folder(const fs::path& checkpoints, std::int64_t step) {
  return checkpoints / (folder_name(step) + std::string(temporary));
}

Status commit(FileSystem& files, const fs::path& checkpoints, const Manifest& manifest) {
  const fs::path folder = temporary_folder(checkpoints, manifest.step),
                 target = checkpoints / folder_name(manifest.step);
  for (const ShardFile& shard : manifest.files) {
    std::error_code error;
    const auto bytes = fs::file_size(folder / shard.name, error);
    if (error || bytes != shard.bytes)
      return data_error(
          fmt::format("{}: expected {} bytes, which a rank wrote, found {}; do all ranks share this folder?",
                      (folder / shard.name).string(), shard.bytes, error ? "no such file" : std::to_string(bytes)));
  }
  LANCET_TRY(write_file(files, folder / "manifest.json", to_json(manifest)));
  LANCET_TRY(files.sync_folder(folder));
  std::error_code ignored;
  if (fs::exists(target, ignored)) LANCET_TRY(remove_checkpoint(files, checkpoints, manifest.step));
  LANCET_TRY(files.rename(folder, target));
  LANCET_TRY(files.sync_folder(checkpoints));
  // The first save created `checkpoints` itself, so its parent is synced, too.
  return files.sync_folder(checkpoints.has_parent_path() ? checkpoints.parent_path() : fs::path("."));
}

Status prune(FileSystem& files, const fs::path& checkpoints, std::int64_t last) {
  if (last <= 0) return {};
  std::vector<std::int64_t> surplus;
  std::int64_t newest = 0;
  for (const std::int64_t step : steps_in(checkpoints)) {
    if (looks_whole(checkpoints / folder_name(step)) && newest++ >= last) surplus.push_back(step);
  }
  std::reverse(surplus.begin(), surplus.end());
  for (const std::int64_t step : surplus) LANCET_TRY(remove_checkpoint(files, checkpoints, step));
  return {};
}

Status remove_leftovers(FileSystem& files, const fs::path& checkpoints) {
  for (const std::string& name : names_in(checkpoints))
    if (name.starts_with(prefix) && name.ends_with(temporary)) LANCET_TRY(files.remove(checkpoints / name));
  return {};
}

Result<int> set_aside_after(FileSystem& files, const fs::path& checkpoints, std::int64_t step) {
  std::vector<std::int64_t> later = steps_in(checkpoints);
  std::erase_if(later, [&](std::int64_t other) { return other <= step; });
  if (later.empty()) return 0;
  for (const std::string& name : names_in(checkpoints))
    if (name.starts_with(prefix) && name.find(aside) != name.npos) LANCET_TRY(files.remove(checkpoints / name));
  for (const std::int64_t other : later)
    LANCET_TRY(files.rename(checkpoints / folder_name(other), checkpoints / (folder_name(other) + std::string(aside))));
  LANCET_TRY(files.sync_folder(checkpoints));
  return int(later.size());
}

}  // namespace lancet::checkpoint
