#include "lancet/checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <algorithm>
#include <atomic>
#include <charconv>
#include <mutex>
#include <thread>

#include "lancet/base/exceptions.h"
#include "lancet/base/files.h"
#include "lancet/base/hash.h"
#include "lancet/base/shown.h"

namespace lancet::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t most_manifest = std::uint64_t{1} << 30;  // a million tensors have 40 MB
// Small enough that a piece is still in the cache when it is hashed and used; a multiple of every element size.
constexpr std::size_t piece_bytes = 1 << 20;
// The code of errors about files that may be sound but cannot be read now.
constexpr ExitCode refused = ExitCode::internal;

Result<std::string> read_manifest(const fs::path& path) {
  LANCET_ASSIGN(const InputFile file, InputFile::open(path, "a checkpoint's manifest", refused));
  if (file.size() > most_manifest)
    return data_error(fmt::format("{}: expected a checkpoint's manifest of at most {} bytes, found {}", path.string(),
                                  most_manifest, file.size()));
  std::string text(file.size(), '\0');
  LANCET_TRY(file.read(0, std::as_writable_bytes(std::span(text.data(), text.size()))));
  return text;
}

// Turns an exception into an error: thrown out of a thread, it would end the process.
template <class Work>
Status caught(const Work& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    return error_of(error);
  }
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const fs::path& folder, FileSystem& files) {
  Checkpoint checkpoint;
  checkpoint.disk_ = &files;
  checkpoint.path_ = folder;
  const fs::path manifest = folder / "manifest.json";
  LANCET_ASSIGN(const std::string text, read_manifest(manifest));
  LANCET_ASSIGN(checkpoint.manifest_, parse_manifest(text, manifest.string()));
  if (const auto step = step_of(folder.filename().string()); step && *step != checkpoint.manifest_.step)
    return data_error(
        fmt::format("{}: expected the checkpoint of step {}, as its folder is called, found one of step {}",
                    manifest.string(), *step, checkpoint.manifest_.step));
  for (const ShardFile& shard : checkpoint.manifest_.files) LANCET_TRY(checkpoint.add_shard(shard));
  return checkpoint;
}

Status Checkpoint::add_shard(const ShardFile& shard) {
  const fs::path path = path_ / shard.name;
  std::error_code error;
  if (fs::is_symlink(path, error))
    return data_error(fmt::format("{}: expected a file in this folder, found a link", path.string()));
  LANCET_ASSIGN(SafetensorsFile file, SafetensorsFile::open(path, refused));
  file.close();
  if (file.size() != shard.bytes)
    return data_error(fmt::format("{}: expected {} bytes, found {}", path.string(), shard.bytes, file.size()));
  if (file.header_hash() != shard.header_xxh3)
    return data_error(fmt::format("{}: expected the checksum {} of its header, found {}: the file was damaged",
                                  path.string(), hex(shard.header_xxh3), hex(file.header_hash())));
  if (file.tensors().size() != shard.tensors_xxh3.size())
    return data_error(fmt::format("{}: expected {} tensors, as in the manifest, found {}", path.string(),
                                  shard.tensors_xxh3.size(), file.tensors().size()));
  for (std::size_t i = 0; i < file.tensors().size(); ++i) {
    const TensorInfo& tensor = file.tensors()[i];
    if (!tensors_.emplace(tensor.name, Location{files_.size(), i}).second)
      return data_error(fmt::format("{}: expected each tensor in one file, found {} in a second one", path.string(),
                                    shown(tensor.name)));
  }
  files_.push_back(std::move(file));
  return {};
}

const TensorInfo* Checkpoint::find(std::string_view name) const {
  const auto at = tensors_.find(name);
  return at == tensors_.end() ? nullptr : &files_[at->second.file].tensors()[at->second.index];
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  for (const auto& [name, location] : tensors_) names.push_back(name);
  return names;
}

struct Checkpoint::Item {
  Location location;
  Target target;
};

// The threads draw the items one by one. The first error stops all; the one of the lowest item is returned.
Status Checkpoint::load(const std::map<std::string, Target>& wanted, int threads) const {
  std::vector<Item> items;
  for (const auto& [name, target] : wanted) {
    const auto at = tensors_.find(name);
    if (at == tensors_.end())
      return data_error(fmt::format("{}: expected the tensor {}, found none", path_.string(), shown(name)));
    items.push_back({at->second, target});
  }
  // By file, so that a thread opens each file at most once.
  std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return std::pair(a.location.file, a.location.index) < std::pair(b.location.file, b.location.index);
  });
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::size_t failed = items.size();  // the lowest item that failed
  Status status;
  const auto work = [&] {
    std::vector<std::byte> buffer;
    std::optional<InputFile> open;
    std::size_t open_index = files_.size();
    for (std::size_t i = next++; i < items.size(); i = next++) {
      Status done = caught([&]() -> Status {
        if (const std::size_t file = items[i].location.file; file != open_index) {
          open.reset();
          LANCET_ASSIGN(auto opened, InputFile::open(files_[file].path(), "a safetensors file", refused));
          open.emplace(std::move(opened)), open_index = file;
        }
        return read_item(items[i], *open, buffer);
      });
      if (done.ok()) continue;
      next = items.size();
      const std::lock_guard lock(mutex);
      if (i < failed) failed = i, status = std::move(done);
    }
  };
  const std::size_t most = std::min<std::size_t>(items.size(), std::size_t(std::max(threads, 1)));
  std::vector<std::jthread> others;
  for (std::size_t i = 1; i < most; ++i) others.emplace_back(work);
  work();
  others.clear();
  return status;
}

Status Checkpoint::read_item(const Item& item, const InputFile& input, std::vector<std::byte>& buffer) const {
  const SafetensorsFile& file = files_[item.location.file];
  const TensorInfo& tensor = file.tensors()[item.location.index];
  Hasher hasher;
  for (std::uint64_t at = 0; at < tensor.bytes(); at += piece_bytes) {
    const std::size_t count = std::min<std::uint64_t>(piece_bytes, tensor.bytes() - at);
    if (!item.target.memory) buffer.resize(piece_bytes);
    const std::span<std::byte> piece(item.target.memory ? item.target.memory + at : buffer.data(), count);
    LANCET_TRY(disk_->read(input, file.data_start() + tensor.begin + at, piece));
    hasher.update(piece);
    if (item.target.sink) LANCET_TRY(item.target.sink(at, piece));
  }
  const std::uint64_t expected = manifest_.files[item.location.file].tensors_xxh3[item.location.index];
  if (hasher.digest() == expected) return {};
  return data_error(fmt::format("{}: {}: expected the checksum {}, found {}: the file was damaged",
                                file.path().string(), shown(tensor.name), hex(expected), hex(hasher.digest())));
}

// Creates, lists and removes checkpoint folders. Each change of the set of checkpoints is one rename, so a crash at any
// point leaves the old state or the new one, plus names that end in .tmp: a save writes step-N.tmp, adds the manifest
// last, syncs the folder and renames it to step-N; a removal renames step-N to step-N.removed.tmp before it deletes the
// files. remove_leftovers() deletes such names after a crash. When a run restarts from an earlier step,
// set_aside_after() renames the later checkpoints to step-N.old; resume and pruning ignore these names.

namespace {

constexpr std::string_view prefix = "step-";
constexpr std::string_view temporary = ".tmp";
constexpr std::string_view aside = ".old";

std::vector<std::string> names_in(const fs::path& folder, std::error_code* failed = nullptr) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    names.push_back(at->path().filename().string());
  std::sort(names.begin(), names.end());
  if (failed) *failed = error;
  return names;
}
// Checks the manifest and the sizes of the files. It opens the manifest alone, so that a check of many folders is
// quick.
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

std::vector<std::int64_t> steps_in(const fs::path& checkpoints) {
  const auto steps = list_steps(checkpoints);
  return steps.ok() ? *steps : std::vector<std::int64_t>();
}

Result<std::vector<std::int64_t>> list_steps(const fs::path& checkpoints) {
  std::error_code error;
  const auto names = names_in(checkpoints, &error);
  const bool nothing = error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
  if (error && !nothing)
    return internal_error(fmt::format("{}: cannot be read: {}", checkpoints.string(), error.message()));
  // An existing file or link does not count as "no checkpoints": a link may lead to a disk that is not mounted.
  std::error_code ignored;
  const auto there = fs::symlink_status(checkpoints, ignored).type();
  if (error && there != fs::file_type::not_found && there != fs::file_type::none)
    return data_error(fmt::format("{}: expected a folder of checkpoints, found {}", checkpoints.string(),
                                  there == fs::file_type::symlink ? "a link to a missing file" : "a file"));
  std::vector<std::int64_t> steps;
  for (const std::string& name : names)
    if (const auto step = step_of(name)) steps.push_back(*step);
  std::sort(steps.rbegin(), steps.rend());
  return steps;
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
