// An AtomicFile is first opened with O_TMPFILE in the target's folder: such a file has no name, so the kernel frees it
// if the process is killed. sync() writes it to the disk and links /proc/self/fd/N to a temporary name (linkat() cannot
// replace an existing file). commit() renames that to the path, which replaces an old file in one step, and syncs the
// folder. Where O_TMPFILE or /proc is missing, the file has the temporary name from the start, and the destructor
// unlinks it unless it was committed. A process that is killed may leave a temporary name, which the next that writes
// to the path removes. If the path is a symbolic link, the file that the link leads to is made or replaced, not the
// link.
#include "lancet/base/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <set>
#include <utility>

#include "lancet/base/log.h"
#include "lancet/base/shown.h"

namespace lancet {

namespace fs = std::filesystem;

namespace {

fs::path folder_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

// The name holds the host, since process numbers of other hosts on a shared disk mean nothing here.
std::string temporary_name(const std::string& target, pid_t maker, int number) {
  return fmt::format("{}.{}-{}-{}.tmp", target, host_name(), maker, number);
}

// The process of this host that a temporary name of the target holds; 0 for other names.
pid_t maker_of(const std::string& name, const std::string& target) {
  const char* const last = name.data() + name.size();
  const std::size_t start = fmt::format("{}.{}-", target, host_name()).size();
  pid_t maker = 0;
  int number = 0;
  const char* const end = std::from_chars(name.data() + std::min(start, name.size()), last, maker).ptr;
  std::from_chars(std::min(end + 1, last), last, number);
  return name == temporary_name(target, maker, number) ? maker : 0;
}

}  // namespace

fs::path behind_links(fs::path path) {
  std::error_code none;
  for (int links = 0; links < 40 && fs::is_symlink(path, none); ++links)  // as many as the kernel follows
    path = folder_of(path) / fs::read_symlink(path, none);
  return path;
}

fs::path temporary_beside(const fs::path& target) {
  static std::atomic<int> count{0};
  std::error_code ignored;
  std::vector<fs::path> gone;
  for (fs::directory_iterator at(folder_of(target), ignored), end; !ignored && at != end; at.increment(ignored)) {
    const pid_t maker = maker_of(at->path().filename().string(), target.filename().string());
    if (maker > 0 && ::kill(maker, 0) != 0 && errno == ESRCH) gone.push_back(at->path());
  }
  for (const fs::path& path : gone)
    if (fs::remove_all(path, ignored); !ignored)
      log::info("{}: left by a command that was killed, removed", path.string());
  return folder_of(target) / temporary_name(target.filename().string(), ::getpid(), count.fetch_add(1));
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      file_(std::move(other.file_)),
      named_(std::exchange(other.named_, false)) {}

AtomicFile::~AtomicFile() {
  if (named_) ::unlink(temporary_.c_str());
}

Error AtomicFile::failed(std::string_view what) const {
  const int error = errno;
  return data_error(fmt::format("{}: cannot {}: {}", path_.string(), what, std::strerror(error)));
}

Result<AtomicFile> AtomicFile::create(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored))
    return data_error(fmt::format("{}: expected a file to write, found a folder", path.string()));
  if (fs::exists(path, ignored) && !fs::is_regular_file(path, ignored))
    return data_error(fmt::format("{}: expected a file to write, found a device or pipe, which a rename would replace",
                                  path.string()));
  const fs::path target = behind_links(path);
  if (fs::is_symlink(target, ignored))
    return data_error(fmt::format("{}: expected a file to write, found links that lead to no file", path.string()));
  fs::path temporary = temporary_beside(target);
  const bool can_be_named = ::access("/proc/self/fd", X_OK) == 0;
  Descriptor file(can_be_named ? ::open(folder_of(target).c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666) : -1);
  const bool named = !file.is_open();
  if (named) file = Descriptor(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file.is_open())
    return data_error(fmt::format("{}: cannot create the file: {}", path.string(), std::strerror(errno)));
  return AtomicFile(target, std::move(temporary), std::move(file), named);
}

Status AtomicFile::append(const void* bytes, std::size_t size) {
  const char* from = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t written = ::write(file_.get(), from, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failed("write");
    from += written;
    size -= static_cast<std::size_t>(written);
  }
  return {};
}

Status AtomicFile::overwrite(std::uint64_t at, const void* bytes, std::size_t size) {
  const ssize_t written = ::pwrite(file_.get(), bytes, size, static_cast<off_t>(at));
  if (written != static_cast<ssize_t>(size)) return failed("write");
  return {};
}

Status AtomicFile::sync() {
  if (::fsync(file_.get()) != 0) return failed("write to the disk");
  return named_ ? Status() : give_name();
}

Status AtomicFile::give_name() {
  const std::string self = fmt::format("/proc/self/fd/{}", file_.get());
  ::unlink(temporary_.c_str());  // left by an earlier process with this process id
  if (::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, temporary_.c_str(), AT_SYMLINK_FOLLOW) != 0)
    return failed("give the finished file a name");
  named_ = true;
  return {};
}

Status AtomicFile::remove_old() {
  if (::unlink(path_.c_str()) != 0 && errno != ENOENT) return failed("remove the old file");
  return {};
}

Status AtomicFile::commit() {
  LANCET_TRY(sync());
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return failed("rename the finished file to this name");
  named_ = false;
  file_.close();
  // Syncing the folder puts the rename on the disk. Errors are ignored: some file systems cannot sync a folder, and
  // write the rename later.
  ::fsync(Descriptor(::open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)).get());
  return {};
}

fs::path nearest_above(const fs::path& path) {
  std::error_code ignored;
  fs::path above = fs::absolute(path / "", ignored).parent_path().parent_path();
  while (!fs::exists(above, ignored) && above.has_relative_path()) above = above.parent_path();
  return above;
}

Status check_writable(const fs::path& path) {
  std::error_code ignored;
  const fs::path target = behind_links(path);
  const fs::path above = target == path ? nearest_above(path) : folder_of(target);  // no folders are made behind links
  const bool other = fs::exists(above, ignored) && !fs::is_directory(above, ignored);
  if (!other && ::access(above.c_str(), W_OK | X_OK) == 0) return {};
  return data_error(fmt::format("{}: expected a folder that can be written to, for {}, found: {}", above.string(),
                                path.string(), other ? "another file" : std::strerror(errno)));
}

Status write_file(const fs::path& path, std::string_view content) {
  LANCET_ASSIGN(AtomicFile file, AtomicFile::create(path));
  LANCET_TRY(file.append(content.data(), content.size()));
  return file.commit();
}

bool is_open_stream(const fs::path& path) {
  const fs::path folder = path.parent_path();
  const bool open = path == "/dev/stdin" || folder == "/dev/fd" || folder == "/proc/self/fd";
  std::error_code ignored;
  return open && (fs::is_fifo(path, ignored) || fs::is_character_file(path, ignored));
}

Result<bool> read_standard_input(std::string& text, std::chrono::milliseconds time) {
  pollfd entry{STDIN_FILENO, POLLIN, 0};
  if (::poll(&entry, 1, static_cast<int>(time.count())) <= 0) return false;
  std::array<char, 1 << 16> buffer;
  const ssize_t count = ::read(STDIN_FILENO, buffer.data(), buffer.size());
  if (count < 0 && (errno == EINTR || errno == EAGAIN)) return false;
  if (count < 0) return data_error(fmt::format("standard input: expected text, found: {}", std::strerror(errno)));
  text.append(buffer.data(), static_cast<std::size_t>(count));
  return count == 0;
}

Result<std::string> read_file(const fs::path& path, std::string_view what, std::uint64_t most) {
  std::error_code error;
  const auto status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found)
    return data_error(fmt::format("{}: expected {}, found no such file", path.string(), what));
  if (status.type() == fs::file_type::none)
    return data_error(fmt::format("{}: expected {}, found: {}", path.string(), what, error.message()));
  if (!fs::is_regular_file(status))
    return data_error(fmt::format("{}: expected {}, found no regular file", path.string(), what));
  const std::uintmax_t size = fs::file_size(path, error);
  if (!error && size > most)
    return data_error(fmt::format("{}: expected {} of at most {} MB, found {} MB", path.string(), what,
                                  most / 1'000'000, size / 1'000'000));
  std::string content(error ? 0 : size, '\0');
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) return data_error(fmt::format("{}: expected {}, found: {}", path.string(), what, std::strerror(errno)));
  if (error || !in.read(content.data(), static_cast<std::streamsize>(content.size())))
    return data_error(fmt::format("{}: expected {}, found a file that cannot be read", path.string(), what));
  return content;
}

fs::path program_path() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  return error ? fs::path() : program;
}

namespace {

// The paths to try for a path relative to the source tree; an absolute one is the only path to try.
std::vector<fs::path> shipped_places(const fs::path& name) {
  if (name.is_absolute()) return {name};
  std::vector<fs::path> places{name};
  if (const fs::path folder = program_path().parent_path(); !folder.empty())
    for (const fs::path& beside : {folder, folder.parent_path()}) places.push_back(beside / "share/lancet" / name);
  return places;
}

// " or one of a, b", the names without extension of the JSON files in a folder of the source tree; empty if there are
// none.
std::string or_names_in(const fs::path& folder) {
  std::set<std::string> names;
  std::error_code error;
  for (const fs::path& place : shipped_places(folder))
    for (const auto& entry : fs::directory_iterator(place, error))
      if (entry.path().extension() == ".json") names.insert(entry.path().stem().string());
  return names.empty() ? "" : fmt::format(" or one of {}", fmt::join(names, ", "));
}

}  // namespace

fs::path find_shipped(const fs::path& name) {
  std::error_code unknown;
  for (const fs::path& place : shipped_places(name))
    if (fs::exists(place, unknown)) return place;
  return {};
}

Result<ShippedText> read_shipped_json(std::string_view what, const fs::path& folder, const std::string& name_or_path) {
  const bool is_path = name_or_path.ends_with(".json") || name_or_path.find('/') != std::string::npos;
  const fs::path path = is_path ? fs::path(name_or_path) : folder / (name_or_path + ".json");
  const fs::path found = find_shipped(path);
  if (found.empty()) {
    const std::vector<fs::path> places = shipped_places(path);
    std::string tried;  // "a, b or c"
    for (std::size_t i = 0; i < places.size(); ++i)
      tried += (i == 0 ? "" : i + 1 == places.size() ? " or " : ", ") + places[i].string();
    return config_error(fmt::format("{}: expected a file{}, found {}, which is not at {}", what, or_names_in(folder),
                                    shown(name_or_path), tried));
  }
  auto text = read_file(found, fmt::format("a {} file", what));
  if (!text.ok()) return config_error(text.error().message);
  return ShippedText{found, *std::move(text)};
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "host";
  std::replace(name.begin(), name.end(), '/', '_');
  return name.data();
}

}  // namespace lancet
